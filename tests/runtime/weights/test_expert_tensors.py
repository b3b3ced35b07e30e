"""Experts of all in one tensor: rows of gate and up that alternate, matrices ``[in, out]``, MXFP4."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from wisp_plan.checkpoint.directory import read_file
from wisp_plan.families.mixtures.gpt_oss import mixture_weights
from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.config import read_quantization
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.quantization.stored_format import VALUES
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_plan.spec.weight import WeightSource, WeightSpec
from wisp_plan.weights.held import hold
from wisp_plan.weights.stored import TRANSPOSED, as_stored
from wisp_plan.weights.tensors import tensors_of
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.protocol.weights.row_permutation import fused_permutation, permuted_row
from wisp_runtime.ops.reference.quantized_packing import E2M1
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.chunks import plan
from wisp_runtime.weights.quantized_chunks import plan_quantized
from wisp_runtime.weights.quantized_rows import parts_bytes, read_held
from wisp_runtime.weights.reader import Files, WeightReader

EXPERTS, INNER, HIDDEN = 3, 320, 64
NAME = "model.layers.0.mlp.experts.gate_up_proj"
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def declared() -> WeightSpec:
    """Declare gate above up, which the checkpoint has in rows that alternate."""
    stored = EXPERTS, HIDDEN, 2 * INNER
    sources = tuple(
        WeightSource(
            NAME,
            stored,
            (range(EXPERTS), range(first, 2 * INNER, 2), range(HIDDEN)),
            (0, first * INNER, 0),
            is_transposed=True,
        )
        for first in range(2)
    )
    return WeightSpec("experts", (EXPERTS, 2 * INNER, HIDDEN), sources, "projection")


def parts_apart(rows):
    """Return gate above up of rows that alternate, ``[E, 2 F, D]``."""
    return np.concatenate([rows[:, ::2], rows[:, 1::2]], axis=1)


def loaded(tmp_path, tensors, quantization=None):
    """Write a checkpoint and load the weight on the CPU; return it ``[E, 2 F, D]``, and its spec."""
    ops = CpuOps(threads=1)
    (spec,), by_name, weights = weights_of(tmp_path, tensors, quantization, ops)
    chunks = [
        *plan_quantized([spec], by_name, ops.uploader(0).chunk_bytes),
        *plan([spec], by_name, 1 << 20),
    ]
    with (
        Files(tmp_path, ["a.safetensors"]) as files,
        WeightReader(files, chunks, weights, ops.uploader(0)) as reader,
    ):
        reader.wait(lambda _done, _total: None)
    identity = np.eye(HIDDEN, dtype=np.float32)
    held = weights["experts"]
    assert len(held) == EXPERTS
    return np.stack([ops.linear(identity, matrix).T for matrix in held]), spec


def weights_of(tmp_path, tensors, quantization, ops):
    save_file(tensors, tmp_path / "a.safetensors")
    by_name = read_file(tmp_path / "a.safetensors").by_name
    config = ConfigReader({"quantization_config": quantization} if quantization else {})
    specs = as_stored([declared()], by_name, read_quantization(config))
    assert {tensor.name for tensor in tensors_of(specs)} == set(tensors)
    for tensor in tensors_of(specs):
        assert by_name[tensor.name].shape == tensor.shape
        assert by_name[tensor.name].dtype in tensor.dtypes
    return specs, by_name, Weights(ops, specs)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__
)
def test_matrices_stored_with_inputs_first_are_read_as_their_transposes(tmp_path, dtype):
    rows = np.random.default_rng(3).standard_normal((EXPERTS, 2 * INNER, HIDDEN)).astype(dtype)
    stored = np.ascontiguousarray(rows.swapaxes(1, 2))
    actual, spec = loaded(tmp_path, {NAME: stored})
    np.testing.assert_array_equal(actual, parts_apart(rows.astype(np.float32)))
    assert {source.stored for source in spec.sources} == {TRANSPOSED}
    assert spec.stored is None
    assert not any(source.is_quantized for source in spec.sources)


def test_a_dequantized_checkpoint_that_says_mxfp4_is_read_by_its_dtype(tmp_path):
    rows = np.random.default_rng(4).standard_normal((EXPERTS, 2 * INNER, HIDDEN)).astype(np.float32)
    actual, spec = loaded(tmp_path, {NAME: np.ascontiguousarray(rows.swapaxes(1, 2))}, MXFP4)
    np.testing.assert_array_equal(actual, parts_apart(rows))
    assert spec.stored is None


def mxfp4_tensors(seed=5):
    """Return random blocks and scales as gpt-oss stores them, and the weights ``[E, 2 F, D]``."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (EXPERTS, 2 * INNER, HIDDEN // 32, 16), np.uint8)
    scales = random.integers(110, 130, (EXPERTS, 2 * INNER, HIDDEN // 32), np.uint8)
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(EXPERTS, 2 * INNER, -1, 32)
    values = E2M1[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
    tensors = {f"{NAME}_blocks": blocks, f"{NAME}_scales": scales}
    return tensors, values.reshape(EXPERTS, 2 * INNER, HIDDEN).astype(np.float32)


def test_mxfp4_experts_are_dequantized_a_byte_s_low_half_first(tmp_path):
    tensors, rows = mxfp4_tensors()
    actual, spec = loaded(tmp_path, tensors, MXFP4)
    np.testing.assert_array_equal(actual, parts_apart(rows))
    assert spec.stored.scheme.kind == "mxfp4"


def test_mxfp4_experts_are_held_in_their_own_codes(tmp_path):
    tensors, rows = mxfp4_tensors()
    specs, by_name, _ = weights_of(tmp_path, tensors, MXFP4, CpuOps(threads=1))
    (held,) = hold(specs, "auto", PACKED_FORMATS, is_quantized=True)
    assert held.held is not None
    assert held.held.name == "mxfp4_fields"
    found = np.full((EXPERTS, 2 * INNER, HIDDEN), np.nan, np.float32)
    with Files(tmp_path, ["a.safetensors"]) as files:
        for chunk in plan_quantized([held], by_name, 1 << 14):
            assert [read.source.part.name for read in chunk.reads] == [VALUES, "scale"]
            read = read_held(files, chunk, held.held, np.empty(parts_bytes(chunk), np.uint8))
            expert, first, _ = chunk.at
            codes = np.stack([read.codes & 15, read.codes >> 4], axis=-1).reshape(len(read.codes), -1, 32)
            powers = np.exp2(read.group_scales.astype(np.float32) - 13) * read.row_scales[:, None]
            values = E2M1[codes] * powers[..., None]
            found[expert, first : first + len(codes)] = values.reshape(len(codes), HIDDEN)
    np.testing.assert_array_equal(found, parts_apart(rows))


class InterleavingOps(CpuOps):
    """Ops that hold rows of gate and up as a GPU does."""

    def row_permutation(self, weight):
        return fused_permutation(weight.rows)


def test_biases_of_experts_are_permuted_as_the_rows_of_each(tmp_path):
    """A permutation of all experts' biases at once would move half of them to other experts."""
    spec = MoeSpec(RouterSpec(EXPERTS, 2, has_bias=True), INNER, "clamped_swiglu", has_bias=True)
    declared = [weight for weight in mixture_weights(spec, HIDDEN, "layers.0", "l") if weight.role == "bias"]
    values = np.random.default_rng(6).standard_normal((EXPERTS, 2 * INNER)).astype(np.float32)
    down = np.random.default_rng(7).standard_normal((EXPERTS, HIDDEN)).astype(np.float32)
    tensors = {"l.mlp.experts.gate_up_proj_bias": values, "l.mlp.experts.down_proj_bias": down}
    save_file(tensors, tmp_path / "a.safetensors")
    ops = InterleavingOps(threads=1)
    weights = Weights(ops, declared)
    with Files(tmp_path, ["a.safetensors"]) as files:
        for chunk in plan(declared, read_file(tmp_path / "a.safetensors").by_name, 1 << 20):
            raw = files.read(chunk, np.empty(chunk.size_bytes, np.uint8)).view(np.float32)
            at = weights.destination(chunk.weight, chunk.at, chunk.shape, "F32")
            rows = at.first + np.arange(len(raw))
            at.weight[permuted_row(rows, len(at.weight), at.permutation)] = raw
    held = weights["layers.0.experts.gate_up.bias"]
    order = permuted_row(np.arange(2 * INNER), 2 * INNER, "gate_up_interleaved")
    np.testing.assert_array_equal(held[:, order], np.concatenate([values[:, ::2], values[:, 1::2]], axis=1))
    np.testing.assert_array_equal(weights["layers.0.experts.down.bias"], down)


def test_random_biases_of_experts_are_the_same_on_devices_that_permute_them():
    spec = MoeSpec(RouterSpec(EXPERTS, 2), 16, "clamped_swiglu", has_bias=True)
    (bias, _) = (weight for weight in mixture_weights(spec, 32, "layers.0", "l") if weight.role == "bias")
    plain, permuted = (Weights(ops, [bias]) for ops in (CpuOps(threads=1), RandomizingOps(threads=1)))
    for weights in (plain, permuted):
        weights.randomize(3)
    order = permuted_row(np.arange(32), 32, "gate_up_interleaved")
    np.testing.assert_array_equal(permuted[bias.name][:, order], plain[bias.name])
    assert len(np.unique(plain[bias.name])) > EXPERTS * 16


class RandomizingOps(InterleavingOps):
    """Ops that permute what they fill at random."""

    def store(self, destination, rows):
        at = destination.first + np.arange(len(rows))
        destination.weight[permuted_row(at, len(destination.weight), destination.permutation)] = rows
