"""Buffers of mixtures of experts: what every step needs is declared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wisp_plan.memory.buffers.gpu import gpu_buffers
from wisp_plan.memory.buffers.moe import MAX_JOINED_TOKENS, MAX_SPLIT_TOKENS, logit_stride, max_tiles, moe
from wisp_plan.memory.step import StepSizes
from wisp_plan.presets import shape_spec
from wisp_plan.quantization.packed_format import EXPERT_FORMATS
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.portable_plan import BLOCK_N
from wisp_runtime.ops.cuda.moe.plan import (
    few_shared_bytes,
    mma_tile,
    route_grid,
    router_shared_bytes,
    wide_tile,
)
from wisp_runtime.ops.cuda.moe.stream_plan import STREAM_THREADS, stream_tiling


def sizes_of(spec, tokens):
    return {buffer.name: buffer for buffer in moe(spec, StepSizes(tokens, 8, 4096, 16))}


@pytest.mark.parametrize("shape", ["qwen3-30b-a3b", "mixtral-8x7b", "glm-4.5-air"])
@pytest.mark.parametrize("max_tokens", [1, 64, 2048])
def test_a_step_of_any_number_of_tokens_fits(shape, max_tokens):
    spec = shape_spec(shape)
    (router,) = {mixture.router for mixture in spec.ffns(MoeSpec)}
    buffers = sizes_of(spec, max_tokens)
    for tokens in range(1, max_tokens + 1, 7):
        pairs = tokens * router.chosen
        stride, ranges = logit_stride(router.experts, has_gate=False), 1
        if tokens <= MAX_SPLIT_TOKENS:
            tiles, _, ranges = route_grid(tokens, router.experts, spec.hidden)
            assert 1 + tiles <= buffers["moe.arrivals"].shape[0]
        assert ranges * tokens * stride * 4 <= buffers["moe.logits"].size_bytes
        tiles = max_tiles(pairs, router.experts, mma_tile(pairs, router.experts).width)
        assert tiles * 16 <= buffers["moe.tiles"].size_bytes


def test_a_shared_expert_has_room_beside_the_others_of_few_tokens():
    spec = shape_spec("qwen3.6-35b-a3b")
    (mixture,) = set(spec.ffns(MoeSpec))
    for max_tokens in (1, 5, 32, 2048):
        buffers, tokens = sizes_of(spec, max_tokens), min(MAX_JOINED_TOKENS, max_tokens)
        assert buffers["moe.rows"].shape[0] >= tokens * (mixture.router.chosen + 1)
        assert (
            buffers["moe.outputs"].shape[0] == buffers["moe.rows"].shape[0] == buffers["moe.inner"].shape[0]
        )
        own = max_tiles(tokens * mixture.router.chosen, mixture.router.experts, 8) + -(-tokens // 8)
        assert buffers["moe.tiles"].shape[0] >= own
    assert sizes_of(spec, 2048)["moe.rows"].shape == (2048 * 8,)


def test_the_largest_of_all_mixtures_counts_and_models_without_have_none():
    spec = shape_spec("qwen3-30b-a3b")
    (layer,) = set(spec.layers)
    wide = replace(layer, ffn=MoeSpec(RouterSpec(8, 2), 4096, has_shared_gate=True))
    both = sizes_of(replace(spec, layers=(layer, wide)), 16)
    assert both["moe.experts"].shape == (16, 8)
    assert both["moe.inner"].size_bytes == max(16 * 8 * 768, 16 * 2 * 4096) * 2
    assert both["moe.counts"].shape == (2, 2, 128)
    assert both["moe.gates"].shape == (16,)
    assert "moe.gates" not in sizes_of(spec, 16)
    assert moe(shape_spec("llama-3-8b"), StepSizes(16, 8, 4096, 16)) == ()
    names = [buffer.name for buffer in gpu_buffers(spec, StepSizes(16, 8, 4096, 16))]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("width", BLOCK_N)
def test_no_spread_of_pairs_has_more_tiles_than_there_may_be(width):
    for experts, counts in ((4, (1, 1, 1, 1)), (4, (9, 0, 0, 0)), (3, (width + 1, 1, 2 * width))):
        tiles = sum(-(-count // width) for count in counts)
        assert tiles <= max_tiles(sum(counts), experts, width) <= sum(counts)


def test_ranges_of_logits_are_as_wide_as_the_kernels():
    assert route_grid(1, 128, 10 * constants()["router_range_columns"]) == (1, 2, 10)


def test_the_last_block_of_a_few_tokens_has_memory_for_all_pairs_beside_the_logits():
    spec = RouterSpec(512, 32, groups=8, chosen_groups=4)
    words = 8 * (516 + 512) + 3 * 512 + constants()["route_threads"] // 32 + 64 * 32
    assert few_shared_bytes(516, spec, 64 * 32, is_float=False) == 4 * words
    assert few_shared_bytes(32, RouterSpec(32, 4), 4, is_float=False) == router_shared_bytes(
        8, is_float=False
    )


@pytest.mark.parametrize(
    ("tokens", "expected"), [(1, 8), (32, 8), (64, 8), (128, 16), (512, 64), (2048, 128), (7900, 128)]
)
def test_most_experts_have_one_tile_up_to_many_tokens(tokens, expected):
    assert mma_tile(tokens * 8, 128).width == expected


@pytest.mark.parametrize(
    ("tokens", "expected"), [(1, None), (1023, None), (1024, 128), (4095, 128), (7900, 192)]
)
def test_many_tokens_of_an_expert_take_a_wide_tile(tokens: int, expected: int | None) -> None:
    tile = wide_tile(tokens * 8, 128)
    assert expected == (tile and tile.width)


@pytest.mark.parametrize(
    ("tokens", "experts", "expected"),
    [
        (512, 128, None),  # Qwen3-30B-A3B: 32 tokens an expert
        (512, 256, None),  # Qwen3.6-35B-A3B: 16
        (2047, 256, None),
        (2048, 256, 256),  # the fewest that were measured
        (7900, 256, 256),
    ],
)
def test_experts_in_block_fp8_take_a_wide_tile_from_64_tokens_on(
    tokens: int, experts: int, expected: int | None
) -> None:
    tile = wide_tile(tokens * 8, experts, is_packed=True)
    assert expected == (tile and tile.width)


@pytest.mark.parametrize("name", ["bf16", "fp8_block", "mxfp4_fields"])
@pytest.mark.parametrize(("items", "blocks"), [(16, 2), (264, 2), (360, 3), (2880, 4)])
def test_all_blocks_that_stream_experts_are_resident(name: str, items: int, blocks: int) -> None:
    tiling = stream_tiling(EXPERT_FORMATS.get(name), items, 132, 227 * 1024)
    assert tiling.blocks == blocks
    assert blocks * (tiling.shared_bytes + 1024) <= 228 * 1024
    assert blocks * STREAM_THREADS <= 2048
    assert 4 <= tiling.stages <= 16
