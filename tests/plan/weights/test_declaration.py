"""Declared weights: one source for each element, equal shares of ranks, scales of quantized parts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.errors import CannotShard, TensorsMismatch
from wisp_plan.families.mixtures.weights import moe_weights
from wisp_plan.presets import shape_spec
from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_plan.spec.share import rank_share
from wisp_plan.spec.weight import GateUpRows, RotaryRows, WeightSource, WeightSpec, part_of, stacked
from wisp_plan.weights.declaration import declare, shard
from wisp_plan.weights.stored import as_stored, part_sources
from wisp_plan.weights.tensors import tensors_of

FAMILIES = ("llama-3-8b", "mistral-7b", "qwen2.5-7b", "qwen3-0.6b")


def covered(weight):
    """Count the sources of each element of a weight, its last axis left out."""
    counts = np.zeros(weight.shape[:-1] if len(weight.shape) > 1 else weight.shape, int)
    for source in weight.sources:
        extents = [len(indices) for indices in source.slices]
        if len(weight.shape) > 1:
            assert (extents[-1], source.at[-1]) == (weight.shape[-1], 0)
            extents = extents[:-1]
        starts = source.at[: counts.ndim]
        extents = [1] * (len(starts) - len(extents)) + extents
        counts[tuple(slice(start, start + count) for start, count in zip(starts, extents, strict=True))] += 1
    return counts


@pytest.mark.parametrize(("model", "ranks"), [("smollm2-135m", 3), *product(FAMILIES, (1, 2))])
def test_every_row_of_a_weight_has_one_source(model, ranks):
    spec = shape_spec(model)
    for rank in range(ranks):
        weights = shard(declare(spec), rank, ranks)
        assert len({weight.name for weight in weights}) == len(weights)
        assert all((covered(weight) == 1).all() for weight in weights)


@pytest.mark.parametrize(
    ("model", "rows"),
    [("llama-3-8b", RotaryRows(128)), ("smollm2-135m", RotaryRows(64)), ("qwen3-0.6b", None)],  # QK norm
)
def test_rows_of_q_k_and_v_may_be_interleaved_where_rope_can_be_fused(model, rows):
    weights = {weight.name: weight for weight in declare(shape_spec(model))}
    assert weights["layers.0.qkv.weight"].rows == rows
    assert weights["layers.0.gate_up.weight"].rows == GateUpRows()


def test_two_ranks_have_half_of_the_heads_and_of_the_inner_channels_each():
    spec = shape_spec("qwen2.5-7b")  # 28 heads of 128, 4 KV heads, inner 18944
    first, second = ({weight.name: weight for weight in shard(declare(spec), rank, 2)} for rank in range(2))
    assert first["layers.0.qkv.weight"].shape == ((14 + 2 * 2) * 128, 3584)
    q, k, v = second["layers.0.qkv.weight"].sources
    assert (q.slices[0], k.slices[0], v.slices[0]) == (range(1792, 3584), range(256, 512), range(256, 512))
    assert (q.at, k.at, v.at) == ((0, 0), (1792, 0), (2048, 0))
    assert second["layers.0.down.weight"].sources[0].slices == (range(3584), range(9472, 18944))
    assert second["embeddings.weight"] == first["embeddings.weight"] == declare(spec)[0]


def test_a_bias_after_partial_sums_is_on_the_first_rank_alone():
    bias = WeightSpec("output.bias", (8,), stacked(("b", (8,))), "bias", is_on_first_rank=True)
    assert [shard([bias], rank, 2) for rank in range(2)] == [(bias,), ()]


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(CannotShard, match=r"layers\.0\.qkv\.weight: 32 units of 128 do not split over 3"):
        shard(declare(shape_spec("llama-3-8b"))[2:3], 0, 3)


EXPERTS = WeightSpec(
    "experts.gate_up",
    (4, 8, 6),
    tuple(
        part_of(f"experts.{expert}.{part}", (4, 6), (range(4), range(6)), (expert, row, 0))
        for expert, (row, part) in product(range(4), ((0, "gate"), (4, "up")))
    ),
    "projection",
)
FUSED = replace(
    EXPERTS,
    sources=(
        part_of("experts", (4, 8, 6), (range(4), range(0, 4), range(6)), (0, 0, 0)),
        part_of("experts", (4, 8, 6), (range(4), range(4, 8), range(6)), (0, 4, 0)),
    ),
)


@pytest.mark.parametrize("weight", [EXPERTS, FUSED])
@pytest.mark.parametrize(("axis", "shape"), [(0, (2, 8, 6)), (1, (4, 4, 6)), (2, (4, 8, 3))])
def test_experts_are_shared_along_any_axis(weight, axis, shape):
    for rank in range(2):
        (share,) = shard([replace(weight, shard_axis=axis)], rank, 2)
        assert share.shape == shape
        assert (covered(share) == 1).all()
        if axis == 0 and weight is EXPERTS:
            assert {source.tensor.split(".")[1] for source in share.sources} == {
                f"{2 * rank}",
                f"{2 * rank + 1}",
            }


MIXTURE = MoeSpec(RouterSpec(4, 2, has_bias=True, has_correction_bias=True), 6, shared=DenseSpec(8))


@pytest.mark.parametrize("activation", ["silu", "relu2"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_mixture_s_rows_have_one_source_in_either_arrangement(activation, ranks):
    declared = tuple(moe_weights(replace(MIXTURE, activation=activation), 10, "layers.0", "l"))
    for rank in range(ranks):
        for weight in shard(declared, rank, ranks):
            for sources in (weight.sources, *weight.alternatives):
                assert (covered(replace(weight, sources=sources)) == 1).all()
    assert rank_share_of(MIXTURE, 2) == replace(MIXTURE, inner=3, shared=DenseSpec(4))


def rank_share_of(ffn, ranks):
    spec = shape_spec("llama-3-8b")
    layers = (replace(spec.layers[0], ffn=ffn),)
    return rank_share(replace(spec, layers=layers), ranks).layers[0].ffn


@pytest.mark.parametrize(
    ("tensors", "source"),
    [
        ({"l.mlp.experts.0.gate_proj.weight": "BF16"}, "l.mlp.experts.0.gate_proj.weight"),
        ({"l.mlp.experts.gate_up_proj": "BF16"}, "l.mlp.experts.gate_up_proj"),
        ({"l.mlp.experts.gate_up_proj_blocks": "U8"}, "l.mlp.experts.gate_up_proj"),
        ({"l.mlp.experts.gate_up_proj_packed": "U8"}, "l.mlp.experts.0.gate_proj.weight"),  # no such format
        ({}, "l.mlp.experts.0.gate_proj.weight"),
    ],
)
def test_a_checkpoint_s_tensors_decide_the_arrangement(tensors, source):
    declared = tuple(moe_weights(replace(MIXTURE, inner=32, shared=None), 32, "layers.0", "l"))
    quantization = MXFP4 if "U8" in tensors.values() else None
    weights = {weight.name: weight for weight in as_stored(declared, index(**tensors), quantization)}
    held = weights["layers.0.experts.gate_up.weight"]
    assert (held.sources[0].tensor, held.alternatives) == (source, ())


FP8_BLOCKS = Quantization("fp8", (Rule(LayerNames((EVERY_LAYER,)), Scheme("fp8", "fp8", 128, 128)),))
MXFP4 = Quantization(
    "mxfp4", (Rule(LayerNames((EVERY_LAYER,)), Scheme("mxfp4", "mxfp4", 1, 32, is_packed=True)),)
)


def index(**tensors):
    return {name: TensorInfo(name, dtype, (), 0, 0, "f") for name, dtype in tensors.items()}


def parts_of(weight):
    """Sources of each part of a weight, by name."""
    listed = [part_sources(weight, source) for source in weight.sources]
    return {same[0].part.name: same for same in zip(*listed, strict=True)}


def test_scales_of_blocks_follow_the_slices_of_their_weights():
    sources = stacked(("q.weight", (256, 384)), ("k.weight", (128, 384)))
    weight = WeightSpec("qkv.weight", (384, 384), sources, "projection")
    tensors = index(**{"q.weight": "F8_E4M3", "q.weight_scale_inv": "F32"})
    (stored,) = as_stored([weight], tensors, FP8_BLOCKS)
    scales = parts_of(stored)["scale"]
    assert [(source.tensor, source.shape) for source in scales] == [
        ("q.weight_scale_inv", (2, 3)),
        ("k.weight_scale_inv", (1, 3)),
    ]
    assert [source.slices[0] for source in scales] == [range(2), range(1)]
    assert [tensor.name for tensor in tensors_of([stored])] == [
        "q.weight",
        "q.weight_scale_inv",
        "k.weight",
        "k.weight_scale_inv",
    ]


@pytest.mark.parametrize("expert_at_a_time", [True, False])
def test_scales_of_experts_are_shared_with_their_weights(expert_at_a_time):
    shape, whole = (2, 512, 256), (range(512), range(256))
    sources = tuple(part_of(f"e{e}.weight", shape[1:], whole, (e, 0, 0)) for e in range(2))
    if not expert_at_a_time:
        sources = (part_of("e0.weight", shape, (range(2), *whole), (0, 0, 0)),)
    weight = WeightSpec("experts.weight", shape, sources, "projection", shard_axis=2)
    tensors = index(**{"e0.weight": "F8_E4M3", "e0.weight_scale_inv": "F32"})
    (stored,) = as_stored(shard([weight], 1, 2), tensors, FP8_BLOCKS)
    assert stored.shape == (2, 512, 128)
    scales = parts_of(stored)["scale"]
    assert all(source.slices[-2:] == (range(4), range(1, 2)) for source in scales)
    assert sum(len(source.slices[0]) if len(source.slices) == 3 else 1 for source in scales) == 2


def test_packed_bytes_with_a_split_last_axis_are_seen_as_rows():
    shape = (4, 64, 96)
    rows = tuple(range(first, 64, 2) for first in range(2))  # gate and up alternate in the checkpoint
    sources = tuple(
        WeightSource("gate_up", shape, (range(4), part, range(96)), (0, 32 * first, 0))
        for first, part in enumerate(rows)
    )
    weight = WeightSpec("gate_up", shape, sources, "projection", rows=GateUpRows())
    (stored,) = as_stored([weight], index(gate_up_blocks="U8", gate_up_scales="U8"), MXFP4)
    assert [(tensor.name, tensor.shape) for tensor in tensors_of([stored])] == [
        ("gate_up_blocks", (4, 64, 3, 16)),
        ("gate_up_scales", (4, 64, 3)),
    ]
    values = parts_of(stored)["values"]
    assert (values[1].slices, values[1].view) == ((range(4), range(1, 64, 2), range(48)), (4, 64, 48))


def test_a_part_that_begins_inside_a_block_of_scales_is_refused():
    sources = stacked(("q.weight", (128, 128)))
    weight = WeightSpec("q.weight", (128, 128), sources, "projection", shard_axis=0)
    tensors = index(**{"q.weight": "F8_E4M3", "q.weight_scale_inv": "F32"})
    (stored,) = as_stored(shard([weight], 1, 2), tensors, FP8_BLOCKS)
    with pytest.raises(TensorsMismatch, match="begins at 64, inside a block of 128"):
        parts_of(stored)


def test_what_is_stored_unquantized_stays_as_declared():
    weights = declare(shape_spec("smollm2-135m"))
    names = {source.tensor: "BF16" for weight in weights for source in weight.sources}
    assert as_stored(weights, index(**names), FP8_BLOCKS) == weights
    assert as_stored(weights, index(), None) == weights
