"""A mixture of experts out of a checkpoint: one by one or in one tensor, quantized or not, as its formula."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from quantized_checkpoints import FORMATS
from safetensors.numpy import save_file
from test_decoder import PLAIN  # tests/runtime/models

from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.config import read_quantization
from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.ffn.moe import MixtureOfExperts
from wisp_runtime.models.load import open_checkpoint
from wisp_runtime.ops.cpu.ops import CpuOps

OPS = CpuOps(threads=1)
E, K, F, D = 6, 2, 64, 128
ROUTER = RouterSpec(E, K)
FP8 = Quantization(
    "fp8",
    (Rule(LayerNames(("*.gate",)), None), Rule(LayerNames((EVERY_LAYER,)), Scheme("fp8", "fp8", 32, 32))),
)


def spec_of(quantization=None, **changes):
    moe = MoeSpec(ROUTER, **{"inner": F} | changes)
    (layer,) = {replace(layer, ffn=moe) for layer in PLAIN.layers}
    return replace(
        PLAIN, hidden=D, layers=(layer, replace(layer, ffn=DenseSpec(F))), quantization=quantization
    )


def checkpoint_of(spec):
    random = np.random.default_rng(2)
    return {
        tensor.name: (random.standard_normal(tensor.shape) / np.sqrt(tensor.shape[-1])).astype(np.float32)
        for tensor in expected_tensors(replace(spec, quantization=None))
    }


def in_one(tensors):
    """The experts' tensors as transformers 5 holds them."""
    prefix = "model.layers.0.mlp.experts"
    own = {
        part: [tensors.pop(f"{prefix}.{e}.{part}_proj.weight") for e in range(E)]
        for part in ("gate", "up", "down")
    }
    tensors[f"{prefix}.gate_up_proj"] = np.concatenate([own["gate"], own["up"]], axis=1)
    tensors[f"{prefix}.down_proj"] = np.stack(own["down"])
    return tensors


def in_fp8(tensors):
    """Every matrix of layer 0's experts in E4M3 with a scale a block of 32 x 32, and what they mean."""
    stored, meant = dict(tensors), dict(tensors)
    for name, values in tensors.items():
        if "layers.0.mlp" in name and "mlp.gate" not in name:
            *leading, rows, columns = values.shape
            blocks = values.reshape(*leading, rows // 32, 32, columns // 32, 32)
            scale = (np.abs(blocks).max(axis=(-3, -1), keepdims=True) / 448).astype(np.float32)
            codes = (blocks / scale).astype(ml_dtypes.float8_e4m3fn)
            stored[name] = codes.reshape(values.shape)
            stored[f"{name}_scale_inv"] = scale.squeeze((-3, -1))
            meant[name] = (codes.astype(np.float32) * scale).reshape(values.shape)
    return stored, meant


def load(folder, spec, tensors, quantization="bf16"):
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return open_checkpoint(folder, spec).held(quantization, ()).load(OPS)


def layer_of(model, index=0):
    spec = model.spec
    context = LayerContext(
        OPS, model.weights, spec, index, None, expert_counts=model.expert_load.of_layer(index)
    )
    return MixtureOfExperts(context, spec.layers[index].ffn)


def silu_mlp(x, gate, up, down):
    gated = x @ gate.T
    return (gated / (1 + np.exp(-gated)) * (x @ up.T)) @ down.T


def in_numpy(tensors, x, *, shared="", has_gate=False):
    own = {name.removeprefix("model.layers.0.mlp."): value for name, value in tensors.items()}
    logits, out = x @ own["gate.weight"].T, np.zeros_like(x)
    for row, of_row in enumerate(logits):
        chosen = np.argsort(-of_row)[:K]
        weights = np.exp(of_row[chosen]) / np.exp(of_row[chosen]).sum()
        for expert, weight in zip(chosen, weights, strict=True):
            parts = (own[f"experts.{expert}.{part}_proj.weight"] for part in ("gate", "up", "down"))
            out[row] += weight * silu_mlp(x[row], *parts)
    if shared:
        added = silu_mlp(x, *(own[f"{shared}.{part}_proj.weight"] for part in ("gate", "up", "down")))
        out += added / (1 + np.exp(-x @ own["shared_expert_gate.weight"].T)) if has_gate else added
    return out


X = np.random.default_rng(4).standard_normal((11, D), np.float32)


@pytest.mark.parametrize("arrange", [dict, in_one], ids=["one by one", "in one"])
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, {}),
        ({"shared": DenseSpec(32)}, {"shared": "shared_experts"}),
        ({"shared": DenseSpec(32), "has_shared_gate": True}, {"shared": "shared_expert", "has_gate": True}),
    ],
    ids=["alone", "shared", "gated"],
)
def test_a_layer_out_of_a_checkpoint_equals_its_formula(tmp_path, arrange, changes, named):
    spec = spec_of(**changes)
    tensors = checkpoint_of(spec)
    model = load(tmp_path / "m", spec, arrange(dict(tensors)))
    np.testing.assert_allclose(layer_of(model)(X), in_numpy(tensors, X, **named), atol=2e-6)
    assert model.expert_load.layers == (0,)
    assert model.expert_load.counts[0, 0].sum() == K * len(X)
    assert model.expert_load.of_layer(1) is None


@pytest.mark.parametrize("quantization", ["bf16", "compact"])
@pytest.mark.parametrize("arrange", [dict, in_one], ids=["one by one", "in one"])
def test_block_fp8_experts_are_their_dequantized_weights(tmp_path, arrange, quantization):
    spec = spec_of(FP8)
    tensors = checkpoint_of(spec)
    stored, meant = in_fp8(arrange(dict(tensors)))
    quantized = load(tmp_path / "q", spec, stored, quantization)
    plain = load(tmp_path / "p", spec_of(), meant)
    held = quantized.weights.specs["layers.0.experts.gate_up.weight"]
    assert (held.compact is not None) == (quantization == "compact")
    np.testing.assert_allclose(layer_of(quantized)(X), layer_of(plain)(X), atol=2e-6)


@pytest.mark.parametrize("quantization", ["bf16", "compact"])
@pytest.mark.parametrize("name", FORMATS)
def test_experts_of_every_stored_format_are_their_dequantized_weights(tmp_path, name, quantization):
    section, writer = FORMATS[name]
    wide, rule = 96, read_quantization(ConfigReader({"quantization_config": section}))
    plain = replace(spec_of(inner=wide), hidden=wide)
    spec, random = replace(plain, quantization=rule), np.random.default_rng(5)
    meant = checkpoint_of(plain)
    stored = dict(meant)
    for tensor in meant:
        if ".experts." in tensor:
            parts, meant[tensor] = writer(random, *stored.pop(tensor).shape)
            stored |= {tensor.removesuffix(".weight") + suffix: values for suffix, values in parts.items()}
    quantized = layer_of(load(tmp_path / "q", spec, stored, quantization))
    exact = layer_of(load(tmp_path / "p", plain, meant))
    x = X[:, :wide] / np.float32(64)
    expected = exact(x)
    np.testing.assert_allclose(quantized(x), expected, atol=1e-5 * np.abs(expected).max())


def test_a_spec_s_tensors_are_those_one_by_one():
    names = [tensor.name for tensor in expected_tensors(spec_of())]
    assert len(names) == len(set(names)) == 3 + 2 * 6 + 1 + 3 * E + 3
    assert len(declare(spec_of())) == 3 + 2 * 4 + 3 + 2


class JoiningOps(CpuOps):
    """A device that multiplies the shared expert beside the others."""

    def joins_shared(self, experts, tokens):
        return tokens == len(X) and experts.shared is not None

    def route(self, x, weight, spec, *, joins_shared=False, **options):
        assert joins_shared
        return super().route(x, weight, spec, **options)

    def mixture(self, x, routing, experts, added=None, **options):
        assert added is None
        into, down = experts.shared
        return super().mixture(x, routing, experts, self.linear(self.swiglu(x, into), down), **options)


@pytest.mark.parametrize("has_gate", [False, True])
def test_a_device_may_multiply_the_shared_expert_beside_the_others(tmp_path, has_gate):
    spec = spec_of(shared=DenseSpec(F), has_shared_gate=has_gate)
    model = load(tmp_path / "m", spec, checkpoint_of(spec))
    names = list(model.weights.specs)
    first = names.index("layers.0.experts.gate_up.weight")
    in_order = ["experts.gate_up", "shared.gate_up", "experts.down", "shared.down"]
    assert names[first : first + 4] == [f"layers.0.{name}.weight" for name in in_order]
    context = LayerContext(JoiningOps(threads=1), model.weights, spec, 0, None)
    joined = MixtureOfExperts(context, spec.layers[0].ffn)
    np.testing.assert_allclose(joined(X), layer_of(model)(X), atol=2e-6)


@pytest.mark.parametrize(
    "shared", [DenseSpec(F + 8), DenseSpec(F, has_bias=True), DenseSpec(F, scale=2.0)], ids=str
)
def test_a_shared_expert_of_another_kind_is_computed_apart(tmp_path, shared):
    spec = spec_of(shared=shared)
    model = load(tmp_path / "m", spec, checkpoint_of(spec))
    assert layer_of(model)._experts.shared is None
