"""Small models whose weights are held quantized: each weight as it is meant, and logits as the CPU's."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[2] / "runtime/support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "gemm"))

from portable_kernels import with_portable_gemms  # noqa: E402
from quantized_checkpoints import FORMATS, fp8, packed  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

from wisp_plan.hardware.kernel_formats import kernel_formats  # noqa: E402
from wisp_plan.memory.step import StepSizes  # noqa: E402
from wisp_plan.quantization.packed_format import PACKED_FORMATS  # noqa: E402
from wisp_plan.weights.held import ROUNDED, held_name  # noqa: E402
from wisp_plan.weights.sizes import weight_bytes  # noqa: E402
from wisp_plan.weights.tensors import expected_tensors  # noqa: E402
from wisp_runtime.batch import Batch, StepKind  # noqa: E402
from wisp_runtime.config import ServeConfig  # noqa: E402
from wisp_runtime.engine.startup import start  # noqa: E402
from wisp_runtime.errors import ConfigError  # noqa: E402
from wisp_runtime.layers.cache import allocate_blocks  # noqa: E402
from wisp_runtime.models.load import open_checkpoint, random_model, read_spec  # noqa: E402
from wisp_runtime.ops.cpu.ops import CpuOps  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, to_host  # noqa: E402
from wisp_runtime.ops.cuda.gemm.portable_linear import PortableLinear  # noqa: E402
from wisp_runtime.ops.cuda.gemm.quantized_tiling import MIN_W8A8_TOKENS  # noqa: E402
from wisp_runtime.ops.cuda.ops import CudaOps  # noqa: E402
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage  # noqa: E402
from wisp_runtime.ops.reference.quantized_packing import dequantize, unpack_quantized  # noqa: E402
from wisp_runtime.ops.reference.quantizers import quantize  # noqa: E402

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "vocab_size": 300,
    "rms_norm_eps": 1e-5,
}
TOKENS = (1, 8, 40, 300)
BLOCK_TOKENS = 16
MIN_COSINE = 0.999  # activations are bf16
MIN_COSINE_W8A8 = 0.98  # they are E4M3, three bits of mantissa: 0.990 to 0.998 on an H200

_GROUPS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False}
_CT = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": _GROUPS}},
}
STORED = FORMATS | {
    "fp8 block 128": (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        fp8(128, 128, "_scale_inv"),
    ),
    "ct int4 128 zeros": (_CT, packed(4, 128, is_symmetric=False)),
}


def folder_of(path, section, projection):
    """Write a model whose projections ``projection(random, rows, columns)`` writes; return their weights."""
    path.mkdir()
    (path / "config.json").write_text(
        json.dumps(CONFIG | ({"quantization_config": section} if section else {}))
    )
    random, tensors, meant = np.random.default_rng(3), {}, {}
    for tensor in expected_tensors(read_spec(path)):
        if tensor.role == "projection":
            stored, meant[tensor.name] = projection(random, *tensor.shape)
            tensors |= {tensor.name.removesuffix(".weight") + name: values for name, values in stored.items()}
        elif tensor.role != "norm":
            tensors[tensor.name] = (random.standard_normal(tensor.shape) * 0.1).astype(BF16)
    deviation = np.mean([np.std(weights) for weights in meant.values()])
    for tensor in expected_tensors(read_spec(path)):
        if tensor.role == "norm":  # so that projections give numbers about 1
            tensors[tensor.name] = np.full(tensor.shape, 1 / (16 * deviation)).astype(BF16)
    save_file(tensors, path / "model.safetensors")
    return meant


def unquantized(random, *shape):
    values = (random.standard_normal(shape) / 16).astype(BF16)
    return {".weight": values}, values.astype(np.float32)


def unquantized_in(dtype, random, *shape):
    values = unquantized(random, *shape)[1].astype(dtype)
    return {".weight": values}, values.astype(np.float32)


def rounded_to(name, dtype, random, *shape):
    """The weights of ``unquantized_in`` as they are held after rounding, stored in float32."""
    _, values = unquantized_in(dtype, random, *shape)
    packed_format = PACKED_FORMATS[name]
    values = dequantize(packed_format, quantize(packed_format, values))
    return {".weight": values}, values


@pytest.fixture(scope="module", params=["own", "portable"])
def ops(request, device):
    """Ops with the GPU's own GEMMs, and with those that Ada and Ampere have."""
    if request.param == "own":
        return CudaOps(device)
    portable = with_portable_gemms(device)
    return CudaOps(portable, PortableLinear(portable))


def model_on(ops, folder, quantization="bf16", formats=()):
    checkpoint = open_checkpoint(folder, read_spec(folder)).held(quantization, formats)
    model = checkpoint.load(ops)
    if ops.device == "cuda":
        ops.reserve(model.spec, StepSizes(512, 16, 512, BLOCK_TOKENS))
    return model, checkpoint


def logits_of(ops, model, count):
    """Return the logits of a prompt's last eight tokens."""
    random = np.random.default_rng(count)
    width = -(-count // BLOCK_TOKENS)
    cache = allocate_blocks(model.spec, ops, blocks=width, block_tokens=BLOCK_TOKENS)
    place, last = ops.from_host, np.arange(max(0, count - 8), count)
    batch = Batch(
        tokens=place(random.integers(0, CONFIG["vocab_size"], count).astype(np.int32)),
        positions=place(np.arange(count, dtype=np.int32)),
        slots=place(np.arange(count, dtype=np.int64)),
        query_starts=place(np.array([0, count], np.int32)),
        context_lengths=place(np.array([count], np.int32)),
        block_tables=place(np.arange(width, dtype=np.int32)[None]),
        logit_rows=place(last.astype(np.int64)),
        query_starts_host=(0, count),
        context_lengths_host=(count,),
        kind=StepKind.PREFILL if count > 1 else StepKind.DECODE,
    )
    return ops.to_host(model.forward(batch, cache).logits).astype(np.float64)


def assert_alike(ops, held, checkpoint, folder):
    has_fp8 = held_name(checkpoint.weights).startswith("fp8")
    reference_ops = CpuOps(threads=4)
    reference, _ = model_on(reference_ops, folder)
    for count in TOKENS:
        got, want = logits_of(ops, held, count), logits_of(reference_ops, reference, count)
        cosines = (got * want).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
        least = MIN_COSINE_W8A8 if has_fp8 and count >= MIN_W8A8_TOKENS else MIN_COSINE
        assert cosines.min() >= least, f"{count} tokens: cosine {cosines.min():.5f}"


def assert_weights(model, checkpoint, meant, exact=True):
    for spec in checkpoint.weights:
        if spec.role != "projection":
            continue
        weight, want = (
            model.weights[spec.name],
            np.concatenate([meant[source.tensor] for source in spec.sources]),
        )
        assert isinstance(weight, QuantizedStorage) == (spec.held is not None)
        if spec.held is None:
            continue
        matrix = unpack_quantized(spec.held, to_host(weight.storage), *want.shape, weight.permutation)
        got = dequantize(spec.held, matrix)
        if exact:
            assert np.array_equal(got, want), spec.name
        else:
            np.testing.assert_allclose(got, want, rtol=2e-7)


HOPPER = kernel_formats("hopper")


@pytest.mark.parametrize("name", STORED)
def test_a_checkpoint_is_held_as_it_is_stored(ops, tmp_path, name):
    section, writer = STORED[name]
    meant = folder_of(tmp_path / "model", section, writer)
    model, checkpoint = model_on(ops, tmp_path / "model", "auto", HOPPER)
    print(name, "held as", held_name(checkpoint.weights))
    assert_weights(model, checkpoint, meant, exact=name != "ct nvfp4")
    assert_alike(ops, model, checkpoint, tmp_path / "model")


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("dtype", [BF16, np.float32, np.float16], ids=str)
def test_an_unquantized_checkpoint_is_rounded_while_it_loads(ops, tmp_path, name, dtype):
    folder_of(tmp_path / "model", None, partial(unquantized_in, dtype))
    meant = folder_of(tmp_path / "rounded", None, partial(rounded_to, name, dtype))
    model, checkpoint = model_on(ops, tmp_path / "model", name, HOPPER)
    assert held_name(checkpoint.weights) == name
    assert_weights(model, checkpoint, meant)
    assert_alike(ops, model, checkpoint, tmp_path / "rounded")


@pytest.mark.parametrize("name", ["fp8", "int4", "nvfp4"])
def test_random_weights_take_the_bytes_that_the_ledger_counts(ops, tmp_path, name):
    folder_of(tmp_path / "model", None, unquantized)
    spec = read_spec(tmp_path / "model")
    model = random_model(spec, ops, quantization=name, formats=HOPPER)
    ledger = weight_bytes(spec, name, "cuda", HOPPER)
    assert model.weights.arena.nbytes == ledger.weights + ledger.scales
    ops.reserve(spec, StepSizes(512, 16, 512, BLOCK_TOKENS))
    assert np.isfinite(logits_of(ops, model, 40)).all()


def test_the_head_is_rounded_where_it_is_asked_for(ops, tmp_path):
    for name in ("model", "rounded"):
        folder_of(tmp_path / name, None, unquantized)
    file = tmp_path / "rounded/model.safetensors"
    tensors, packed_format = load_file(file), PACKED_FORMATS["fp8"]
    head = quantize(packed_format, tensors["lm_head.weight"].astype(np.float32))
    save_file(tensors | {"lm_head.weight": dequantize(packed_format, head)}, file)
    model, checkpoint = model_on(ops, tmp_path / "model", "bf16+fp8", HOPPER)
    assert held_name(checkpoint.weights) == "bf16+fp8"
    assert_alike(ops, model, checkpoint, tmp_path / "rounded")


@pytest.mark.parametrize(
    ("section", "quantization", "held", "note"),
    [
        (None, "fp8", "fp8", "fp8 (E4M3, a scale a row) rounded at load; embeddings and head bf16"),
        (
            STORED["fp8 block 128"][0],
            "auto",
            "fp8_block",
            "fp8 (E4M3, 128 x 128) as stored; embeddings and head bf16",
        ),
        (STORED["fp8 block 128"][0], "bf16", "bf16", "bf16, dequantized from fp8"),
    ],
)
def test_an_engine_says_what_it_holds(ops, tmp_path, section, quantization, held, note):
    folder_of(tmp_path / "model", section, STORED["fp8 block 128"][1] if section else unquantized)
    phases = []
    config = ServeConfig(
        model=str(tmp_path / "model"), device="cuda", quantization=quantization, kv_cache_memory=64 << 20
    )
    engine = start(config, phases.append)
    assert engine.ready.kernels["set"] == f"hopper/common/{held}"
    assert engine.ready.ledger["weights"] == note
    assert note in [phase.note for phase in phases if phase.name == "weights"]
    with pytest.raises(ConfigError, match="quantized already" if section else "must be"):
        start(
            replace(config, quantization="int4") if section else replace(config, block_tokens=7),
            phases.append,
        )
