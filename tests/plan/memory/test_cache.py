"""Caches of layers: groups, and the bytes of blocks and slots."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.kv_formats.layers import KV_FORMATS, KvLayers
from wisp_plan.kv_formats.plain import BF16
from wisp_plan.memory.cache import (
    CacheGroup,
    Pool,
    cache_sizes,
    groups,
    kv_bytes_per_token,
    model_groups,
    sequence_blocks,
)
from wisp_plan.spec.cache import PagedKV, State

FULL, WINDOW = PagedKV(2, 64, 64), PagedKV(2, 64, 64, window=128)
STATE = State(((4, 8, 8), (12, 3)), ("float32", "bf16"))


@dataclass(frozen=True)
class PagedLatent:
    """A latent vector of every token, as multi-head latent attention keeps one for all heads."""

    size: int
    format: KvFormat = BF16
    window: int | None = None

    def block_shapes(self, block_tokens):
        return ((block_tokens, self.size),)


def test_layers_with_equal_caches_form_a_group_and_states_come_last():
    grouped = groups([STATE, FULL, WINDOW, None, FULL, STATE], "bf16")
    assert [group.layers for group in grouped] == [(1, 4), (2,), (0, 5)]


@pytest.mark.parametrize(
    ("spec", "kv_dtype", "token_bytes", "slot_bytes"),
    [
        (FULL, "bf16", 3 * 2 * 2 * 64 * 2, 0),
        (FULL, "fp8", 3 * 2 * 2 * 64, 0),
        (FULL, "float32", 3 * 2 * 2 * 64 * 4, 0),
        (PagedKV(1, 64, 32), "bf16", 3 * (64 + 32) * 2, 0),
        (FULL, "turbo8", 3 * 2 * 2 * 64, 0),
        (FULL, "nvfp4", 3 * 2 * 2 * (32 + 4), 0),  # a scale of a byte for 16 channels
        (FULL, "turbo4", 3 * 2 * 2 * (32 + 4), 0),
        (FULL, "turbo3", 3 * 2 * 2 * (24 + 4), 0),
        (PagedKV(1, 80, 80), "turbo3", 3 * 2 * (30 + 5), 0),
        (PagedLatent(576), "bf16", 3 * 1152, 0),  # DeepSeek-V3: 1,152 bytes a token and layer
        (STATE, "bf16", 0, 3 * (256 * 4 + 36 * 2)),
        (STATE, "float32", 0, 3 * (256 + 36) * 4),  # a CPU has no bf16
    ],
)
def test_a_group_counts_the_bytes_of_a_token_or_of_a_sequence(spec, kv_dtype, token_bytes, slot_bytes):
    (group,) = groups([spec] * 3, kv_dtype)
    assert (group.token_bytes, group.slot_bytes) == (token_bytes, slot_bytes)


def test_a_model_has_one_group_of_all_its_layers(spec_of):
    spec = spec_of("llama-3-8b")
    assert model_groups(spec, "bf16") == (CacheGroup(PagedKV(8, 128, 128), tuple(range(32))),)
    assert kv_bytes_per_token(spec, "bf16") == 131_072


def test_first_and_last_layers_stay_bf16_in_a_group_of_their_own(spec_of):
    plain, quantized = PagedKV(8, 128, 128), replace(PagedKV(8, 128, 128), format=KV_FORMATS["turbo4"])
    kv = KvLayers.of("turbo4", plain_layers=2)
    groups = model_groups(spec_of("llama-3-8b"), kv)
    assert groups == (CacheGroup(plain, (0, 1, 30, 31)), CacheGroup(quantized, tuple(range(2, 30))))
    assert kv_bytes_per_token(spec_of("llama-3-8b"), kv) == 8 * 2 * (4 * 256 + 28 * 72)
    assert str(kv) == "turbo4, first and last 2 layers bf16"


def sizes_of(specs, blocks, **more):
    options = {"block_tokens": 16, "max_concurrent": 4, "max_step_tokens": 512, "max_context": 8192}
    return cache_sizes(groups(specs, "bf16"), blocks, **(options | more))


def test_a_cache_is_blocks_of_tokens_and_slots_of_sequences():
    sizes = sizes_of([FULL, STATE, FULL], 1000)
    full, state = groups([FULL, STATE, FULL], "bf16")
    assert sizes.pools == (Pool(full, 1000),)
    assert sizes.states == (state,)
    assert (sizes.state_slots, sizes.snapshots) == (4, 4)  # a state and a snapshot for each sequence
    assert sizes.size_bytes == 1000 * 16 * 1024 + 8 * (256 * 4 + 36 * 2)


@pytest.mark.parametrize(
    ("tokens", "max_step_tokens", "blocks"),
    [
        (128, 512, 8),  # all of it is in the window
        (640, 512, 40),
        (700, 512, 41),  # window and step, from anywhere in a block to anywhere in another
        (100_000, 512, 41),
        (100_000, 1, 10),  # what decodes
    ],
)
def test_a_sequence_holds_the_blocks_of_its_window_and_a_step(tokens, max_step_tokens, blocks):
    assert CacheGroup(WINDOW, (0,)).sequence_blocks(tokens, 16, max_step_tokens) == blocks


def test_a_group_with_a_window_has_fewer_blocks_beside_one_without():
    sizes = sizes_of([FULL, WINDOW], 1000)
    # Four sequences of nine blocks, and two steps of 32.
    assert [pool.blocks for pool in sizes.pools] == [1000, 4 * 9 + 2 * 32]
    assert [pool.blocks for pool in sizes_of([FULL, WINDOW], 90).pools] == [90, 90]
    assert [pool.blocks for pool in sizes_of([WINDOW], 1000).pools] == [1000]  # the rest is prefix cache


def test_sequences_share_blocks():
    sizes = sizes_of([FULL], 1000)
    assert sequence_blocks((sizes.pools[0].group,), 8000, 16, 512) == 500
    assert sizes.sequences(8000, 512) == 2
    assert sizes.sequences(8001, 512) == 1
    assert sizes.tokens(4, 8192, 512) == 250 * 16
    assert sizes.tokens(1, 8192, 512) == 8192
    assert sizes_of([STATE], 0).sequences(8000, 512) is None


@pytest.mark.parametrize(
    ("tokens", "max_step_tokens", "at_a_time"),
    [
        (8000, 512, 2),  # 1,000 blocks without a window hold no third
        (4000, 512, 4),  # a prompt takes 41 of the 100 blocks of windows, the other three 9 each
        (1600, 512, 7),
        (800, 1, 11),  # all decode: the first may compute a token more than its window
        (128, 512, 12),  # shorter than the window: 8 blocks each
    ],
)
def test_sequences_behind_a_window_share_one_prompts_step(tokens, max_step_tokens, at_a_time):
    sizes = sizes_of([FULL, WINDOW], 1000)
    assert [pool.blocks for pool in sizes.pools] == [1000, 100]
    assert sizes.sequences(tokens, max_step_tokens) == at_a_time


def test_windows_shorten_no_sequence_that_their_blocks_suffice_for():
    sizes = sizes_of([FULL, WINDOW], 1000)
    assert sizes.tokens(4, 4000, 512) == 4000
    assert sizes.tokens(10, 4000, 512) == 100 // 10 * 16
    assert sizes.tokens(4, 8192, 512) == 1000 // 4 * 16


@given(
    window=st.integers(1, 300),
    context=st.integers(1, 4000),
    step=st.integers(1, 1000),
    most=st.integers(1, 64),
)
def test_a_groups_windows_never_bound_the_sequences_that_its_blocks_were_made_for(
    window, context, step, most
):
    full, windowed = FULL, replace(FULL, window=window)
    sizes = sizes_of(
        [full, windowed], 1 << 20, max_concurrent=most, max_step_tokens=step, max_context=context
    )
    assert sizes.sequences(context, step) >= most
    assert sizes.tokens(most, context, step) == context
