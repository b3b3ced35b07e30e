"""Weights of Gated DeltaNet: both orders of rows on disk become one in memory, in every format."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wisp_plan.families.hybrid.delta_net_weights import delta_net_weights
from wisp_plan.quantization.layer_names import LayerNames
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.weights.held import hold
from wisp_plan.weights.stored import as_stored

SPEC = DeltaNetSpec(key_heads=4, value_heads=12, key_size=8, value_size=16)
HIDDEN = 6


def declared(spec, hidden=HIDDEN):
    return {
        weight.name.removeprefix("layers.3."): weight
        for weight in delta_net_weights(spec, hidden, "layers.3", "model.layers.3")
    }


def loaded(weight, tensors):
    held = np.full(weight.shape, np.nan)
    for source in weight.sources:
        stored = tensors[source.tensor.removeprefix("model.layers.3.linear_attn.")]
        part = stored.reshape(source.view or source.shape)[np.ix_(*source.slices)]
        held[tuple(slice(at, at + count) for at, count in zip(source.at, part.shape, strict=True))] = part
    return held


def test_grouped_rows_are_read_into_the_order_of_the_others():
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((4, 8, HIDDEN)) for _ in range(2))
    v, z = (random.standard_normal((4, 3 * 16, HIDDEN)) for _ in range(2))
    b, a = (random.standard_normal((4, 3, HIDDEN)) for _ in range(2))
    flat = {name: array.reshape(-1, HIDDEN) for name, array in zip("qkvzba", (q, k, v, z, b, a), strict=True)}
    in_order = {
        "in_proj_qkv.weight": np.concatenate([flat[name] for name in "qkv"]),
        "in_proj_z.weight": flat["z"],
        "in_proj_b.weight": flat["b"],
        "in_proj_a.weight": flat["a"],
    }
    grouped = {
        "in_proj_qkvz.weight": np.concatenate((q, k, v, z), axis=1).reshape(-1, HIDDEN),
        "in_proj_ba.weight": np.concatenate((b, a), axis=1).reshape(-1, HIDDEN),
    }
    weights, others = declared(SPEC), declared(replace(SPEC, is_grouped=True))
    for name, parts in (("qkvz.weight", "qkvz"), ("gates.weight", "ba")):
        expected = np.concatenate([flat[part] for part in parts])
        np.testing.assert_array_equal(loaded(weights[name], in_order), expected)
        np.testing.assert_array_equal(loaded(others[name], grouped), expected)


def test_the_convolution_is_seen_without_its_middle_axis_and_parameters_are_float32():
    weights = declared(SPEC)
    stored = np.random.default_rng(1).standard_normal((SPEC.conv_size, 1, 4))
    np.testing.assert_array_equal(loaded(weights["conv.weight"], {"conv1d.weight": stored}), stored[:, 0])
    assert {name for name, weight in weights.items() if weight.dtype == "F32"} == {
        "decay",
        "step_bias",
        "gated_norm.weight",
    }


@pytest.mark.parametrize("is_grouped", [False, True])
def test_a_block_fp8_checkpoint_stays_fp8_but_for_b_and_a(is_grouped):
    spec = DeltaNetSpec(2, 4, 128, 128, is_grouped=is_grouped)
    unquantized = LayerNames(tuple(f"model.layers.3.linear_attn.in_proj_{name}" for name in ("b", "a", "ba")))
    blocks = Rule(LayerNames(("Linear",)), Scheme("fp8", "fp8", 128, 128))
    quantization = Quantization("fp8", (Rule(unquantized, None), blocks))
    weights = declared(spec, 256).values()
    held = hold(as_stored(weights, {}, quantization), "auto", ("bf16", "fp8_block"), is_quantized=True)
    formats = {weight.name.partition("3.")[2]: weight.held and weight.held.name for weight in held}
    assert formats == {
        "qkvz.weight": "fp8_block",
        "gates.weight": None,
        "conv.weight": None,
        "decay": None,
        "step_bias": None,
        "gated_norm.weight": None,
        "output.weight": "fp8_block",
    }


def test_rounding_at_load_leaves_b_and_a_as_they_are():
    held = hold(declared(DeltaNetSpec(2, 4, 128, 128), 256).values(), "fp8", ("bf16", "fp8"))
    rounded = [weight.name.partition("3.")[2] for weight in held if weight.held is not None]
    assert rounded == ["qkvz.weight", "output.weight"]
