"""Output gate of attention, its projection beside Q, K and V, and norms of zero-centred weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wisp_plan.families.hugging_face import attention_weights
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.rope import RopeSpec
from wisp_runtime.batch import Batch
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.protocol.attention import HeadLayout, KvCache, QkvProjection, RopeTable

OPS = CpuOps(threads=1)
SPEC = AttentionSpec(6, 2, 16, RopeSpec(rotary_size=8), has_qk_norm=True, has_output_gate=True)


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def packed(rows):
    weight = OPS.matrix(np.zeros(OPS.matrix_elements(*rows.shape), np.float32), *rows.shape)
    OPS.store_rows(weight, 0, rows)
    return weight


def step_of(tokens):
    slots, nothing = np.arange(tokens), np.zeros(0, np.int64)
    positions = np.arange(tokens, dtype=np.int32)
    return Batch(nothing, positions, slots, *(nothing,) * 4, query_starts_host=(0,), context_lengths_host=())


@pytest.mark.parametrize("tokens", [1, 5])
def test_q_k_and_v_are_those_without_a_gate_and_the_gate_is_a_plain_gemm(tokens):
    rows, x = random(16 * (6 + 2 + 2 + 6), 32), random(tokens, 32)
    table = RopeTable(random(tokens, 4), random(tokens + 1, 4)[:tokens])
    heads = HeadLayout(6, 2, 16, random(16), random(17)[:16], 1e-6, is_zero_centred=True)
    caches = [np.zeros((2, 2, 4, 16), np.float32) for _ in range(4)]
    without, gated = (QkvProjection(packed(part), None, heads, table) for part in (rows[:160], rows))
    plain = OPS.project_qkv(x, without, step_of(tokens), KvCache(*caches[:2]))
    q, gate = OPS.project_gated_qkv(x, gated, step_of(tokens), KvCache(*caches[2:]))
    np.testing.assert_allclose(q, plain, rtol=1e-5, atol=1e-5)  # GEMMs of other widths
    np.testing.assert_allclose(gate, x @ rows[160:].T, rtol=1e-4, atol=1e-4)
    for one, other in zip(caches[:2], caches[2:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_heads_are_multiplied_by_the_sigmoid_of_the_gate():
    mixed, gate = random(7, 96), 20 * random(7, 96)
    expected = mixed / (1 + np.exp(-gate.astype(np.float64)))
    np.testing.assert_allclose(OPS.gate_heads(mixed, gate), expected, rtol=1e-5, atol=1e-7)
    rows = np.array([0, 6])
    np.testing.assert_array_equal(OPS.gate_heads(mixed, gate, rows), OPS.gate_heads(mixed, gate)[rows])
    with pytest.raises(ShapeError, match="gate"):
        OPS.gate_heads(mixed, gate[:, :95])


def test_a_zero_centred_norm_scales_by_one_more_than_its_weight():
    x, weight = random(3, 24), random(24)
    exact = x.astype(np.float64)
    exact = exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-6) * (1.0 + weight)
    normed = OPS.rmsnorm(x, weight, eps=1e-6, is_zero_centred=True)
    np.testing.assert_allclose(normed, exact, rtol=1e-5, atol=1e-6)
    residual, rows = random(5, 24), np.array([1, 2, 4])
    summed = residual[rows] + x
    added = OPS.add_rmsnorm(x, residual, weight, eps=1e-6, rows=rows, is_zero_centred=True)
    np.testing.assert_array_equal(added, OPS.rmsnorm(summed, weight, eps=1e-6, is_zero_centred=True))


def loaded(weight, tensors):
    """Read the sources of a weight as the loader does."""
    held = np.full(weight.shape, np.nan)
    for source in weight.sources:
        stored = tensors[source.tensor].reshape(source.view or source.shape)
        part = stored[np.ix_(*source.slices)]
        held[tuple(slice(at, at + count) for at, count in zip(source.at, part.shape, strict=True))] = part
    return held


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_checkpoint_has_query_and_gate_head_by_head(has_bias):
    spec = replace(SPEC, has_qkv_bias=has_bias)
    for weight in list(attention_weights(spec, 32, "layers.0", "model.layers.0"))[: 1 + has_bias]:
        kind, inputs = weight.name.rpartition(".")[2], weight.shape[1:]
        name = f"model.layers.0.self_attn.{{}}_proj.{kind}"
        tensors = {name.format("q"): random(192, *inputs)}
        tensors |= {name.format(letter): random(32, *inputs) for letter in "kv"}
        q_and_gate = tensors[name.format("q")].reshape(6, 2, 16, *inputs)
        q, gate = (q_and_gate[:, half].reshape(96, *inputs) for half in range(2))
        expected = np.concatenate((q, tensors[name.format("k")], tensors[name.format("v")], gate))
        np.testing.assert_array_equal(loaded(weight, tensors), expected)
