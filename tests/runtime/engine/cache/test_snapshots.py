"""Snapshots of recurrent state: which are taken, which stay, which go first, and that none is lost."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_manager import BLOCK, FULL, PROMPT, admit, compute, evict, hit, manager_of, serve

from wisp_plan.memory.cache import cache_sizes, groups
from wisp_plan.spec.cache import PagedKV, State
from wisp_runtime.engine.cache.manager import CacheManager
from wisp_runtime.engine.cache.node import Node
from wisp_runtime.engine.cache.state_slots import StateSlots

OTHER = (*PROMPT[:11], 99, 98, 97)  # leaves the prompt after 11 tokens, which are five blocks and a half


@pytest.mark.parametrize(
    ("step", "expect"), [(4, [4, 8, 12]), (5, [4, 8]), (100, []), (1, [*range(2, 13, 2)])]
)
def test_a_first_visitor_ends_no_step_for_a_snapshot(step, expect):
    manager = manager_of(FULL, states=1)
    assert compute(manager, admit(manager), step=step) == expect
    assert manager.states.free_snapshots == 8 - bool(expect)  # the newest alone stays


def test_a_hit_of_a_recurrent_model_ends_at_a_snapshot():
    manager = manager_of(FULL, states=2)
    assert serve(manager) == [4, 8, 12]
    assert hit(manager) == 12
    assert hit(manager, (*PROMPT[:11], 99, 98)) == 0  # five blocks are there, and no state after ten tokens
    cache = admit(manager, (*PROMPT[:12], 99, 98))
    assert (cache.cached_blocks * BLOCK, cache.restore_slot, cache.state_slot) == (12, cache.node.snapshot, 0)


def test_a_second_visitor_leaves_a_snapshot_where_it_leaves_the_path():
    manager = manager_of(FULL, states=1)
    serve(manager)
    cache = admit(manager, OTHER)
    assert (cache.cached_blocks, cache.shared_tokens, cache.stops) == (0, 10, (10,))
    assert compute(manager, cache, OTHER, step=100) == [10, 14]
    manager.release(cache)
    assert hit(manager, (*PROMPT[:10], 50, 51)) == 10
    assert (manager.snapshots.hits, manager.snapshots.misses) == (1, 1)


def test_a_turn_of_a_conversation_leaves_one_before_its_prompts_end():
    manager = manager_of(FULL, states=1)
    serve(manager)
    longer = (*PROMPT, *range(30, 42))  # 25 tokens, twelve of which are found
    cache = admit(manager, longer)
    assert (cache.cached_blocks, cache.stops) == (6, (24,))
    assert compute(manager, cache, longer, step=100) == [24]
    manager.release(cache)
    assert hit(manager, (*longer, 1)) == 24
    assert hit(manager) == 12, "a snapshot that was used stays"


def test_no_step_ends_for_a_snapshot_that_saves_little():
    manager = manager_of(FULL, states=1)
    serve(manager)
    cache = admit(manager, (*PROMPT, 50, 51, 52, 53))  # 12 found, the end at 16: four tokens, two strides
    assert cache.stops == ()
    cache = admit(manager_with(PROMPT[:7]), (*PROMPT[:7], 50, 51))  # a path of six tokens
    assert cache.stops == ()


@pytest.mark.parametrize(
    ("tokens", "step", "found"),
    [
        (200, 8192, [0, 0, 0, 0]),
        (256, 8192, [0, 0, 0, 0]),
        (257, 8192, [0, 0, 256, 256]),
        (300, 8192, [0, 0, 256, 256]),
        (2048, 8192, [0, 0, 1984, 1984]),
        (2100, 8192, [0, 2048, 2048, 2048]),
        (200, 512, [0, 0, 0, 0]),
        (300, 512, [0, 0, 256, 256]),
        (600, 512, [0, 512, 512, 512]),
    ],
)
def test_a_prompt_that_comes_again_finds_what_the_documentation_says(tokens, step, found):
    made = groups([FULL, State(((1,),), ("float32",))], "bf16")
    shared = {"max_concurrent": 4, "max_step_tokens": step, "max_context": 4096}
    sizes = cache_sizes(made, 2000, block_tokens=BLOCK, **shared)
    assert sizes.stride == 64
    manager, prompt = CacheManager(sizes, step), tuple(range(tokens))
    visits = []
    for _ in found:
        cache = admit(manager, prompt)
        visits.append(cache.cached_blocks * BLOCK)
        compute(manager, cache, prompt, step=step)
        manager.release(cache)
    assert visits == found


def manager_with(tokens):
    manager = manager_of(FULL, states=1)
    serve(manager, tokens)
    return manager


def test_a_stop_that_nothing_found_stays_when_the_sequence_passes_its_own_blocks():
    manager = manager_of(FULL, states=2)
    serve(manager)
    cache = admit(manager, OTHER)
    compute(manager, cache, OTHER[:10], step=100)
    assert manager.lookup(cache, OTHER) == 0
    assert cache.stops == (10,)


LONG = tuple(range(100, 171))  # 35 strides and a token


@pytest.mark.parametrize(
    ("length", "expect", "found"),
    [(63, [], 0), (65, [64], 64), (66, [64, 66], 64), (67, [66], 66), (71, [70], 70)],
)
def test_a_long_prompt_that_nothing_was_found_of_leaves_one_at_its_last_position(length, expect, found):
    manager, prompt = manager_of(FULL, states=1, blocks=40), LONG[:length]
    cache = admit(manager, prompt)
    assert compute(manager, cache, prompt, step=100) == expect
    manager.release(cache)
    assert hit(manager, prompt) == found, "its first repeat"


def test_no_other_snapshot_goes_for_one_of_a_first_visitor():
    manager = manager_of(FULL, states=4, blocks=120, snapshots=1)
    early = admit(manager, LONG)
    assert early.spare_stop == 70
    assert manager.align(early, 0, 71, 71) == 70
    serve(manager)
    assert manager.align(early, 0, 71, 71) == 71, "no step is ended for a snapshot that is not taken"
    assert compute(manager, early, LONG, step=100) == []
    assert admit(manager, LONG[::-1]).spare_stop == 0
    assert hit(manager) == 12


def test_a_first_visitor_of_several_steps_is_one_still_when_it_passes_its_own_blocks():
    manager = manager_of(FULL, states=1, blocks=40)
    cache = admit(manager, LONG)
    compute(manager, cache, LONG[:40], step=20)
    assert manager.lookup(cache, LONG) == 0
    assert (cache.shared_tokens, cache.stops, cache.spare_stop) == (0, (), 70)


def test_a_first_visitors_snapshot_goes_first_until_it_is_used():
    manager = manager_of(FULL, states=1, blocks=200, snapshots=2)
    second, third = (tuple(range(start, start + 5)) for start in (200, 300))
    for is_used, gone in ((False, LONG), (True, second)):
        manager.clear()
        manager.release(compute_all(manager, LONG))
        if is_used:
            manager.release(compute_all(manager, LONG))
        serve(manager, second)
        serve(manager, third)
        assert [tokens for tokens in (LONG, second, third) if not hit(manager, tokens)] == [gone]


def compute_all(manager, tokens):
    cache = admit(manager, tokens)
    compute(manager, cache, tokens, step=100)
    return cache


def test_a_sequence_outside_of_the_tree_ends_no_step_for_a_snapshot():
    manager = manager_of(FULL, states=1, blocks=40)
    cache = admit(manager, LONG, reusable_tokens=0)
    assert cache.spare_stop == 0
    assert admit(manager_of(FULL, states=1, blocks=40), LONG, reusable_tokens=67).spare_stop == 66


def test_a_model_of_states_alone_keeps_no_more_of_a_prefix_than_its_snapshots():
    manager = manager_of(states=1, snapshots=2)
    assert serve(manager) == [4, 8, 12]
    assert [hit(manager, (*PROMPT[:end], 99)) for end in (4, 8, 12)] == [0, 0, 12]
    manager.clear()
    assert hit(manager) == 0
    assert not manager.tree.root.children


def test_of_what_a_sequence_leaves_on_its_way_the_newest_snapshot_alone_stays():
    manager = manager_of(FULL, states=1)
    serve(manager, (*PROMPT, *range(30, 40)))
    assert manager.states.free_snapshots == 8 - 1
    assert hit(manager, (*PROMPT, *range(30, 40), 1)) == 20


def test_one_that_another_sequence_has_begun_from_stays():
    manager = manager_of(FULL, states=2)
    first, tokens = admit(manager), (*PROMPT, *range(30, 40))
    compute(manager, first, tokens[:8])
    assert hit(manager, (*PROMPT[:8], 50)) == 8  # found, but no chunk was planned from it
    again = admit(manager, (*PROMPT[:8], 50))
    manager.take_restore(again)
    manager.release(again)
    start = 8
    while start < len(tokens):
        end = start + manager.align(first, start, min(4, len(tokens) - start), len(tokens))
        manager.extend(first, start, end)
        manager.take_snapshot(first, end)
        manager.publish(first, tokens, end)
        start = end
    assert manager.states.free_snapshots == 8 - 2
    assert hit(manager, (*PROMPT[:8], 50)) == 8


def slots_with(*tokens, chain=True):
    """Return slots with a snapshot after each number of ``tokens``, on one path or each on its own."""
    states, above, nodes = StateSlots(1, len(tokens)), Node(None, (), []), []
    root = above
    for number, count in enumerate(tokens):
        parent = above if chain else root
        above = parent.children[(number,)] = Node(parent, (number,), [])
        states.attach(states.take_snapshot(), above, count)
        nodes.append(above)
    return states, nodes


@pytest.mark.parametrize(
    ("chain", "tokens", "gone"),
    [
        (False, (100, 30, 70), [1, 2, 0]),  # each saves all its tokens
        (True, (100, 130, 400), [1, 0, 2]),  # 100, 30, 270; without the second the third saves 300
    ],
)
def test_the_snapshot_that_saves_the_least_goes_first(chain, tokens, gone):
    states, nodes = slots_with(*tokens, chain=chain)
    assert [nodes.index(states.evict()) for _ in tokens] == gone
    assert (states.evict(), states.evictions, states.free_snapshots) == (None, 3, 3)


def test_a_snapshot_that_goes_along_with_its_block_is_an_eviction():
    manager = manager_of(FULL, states=1)
    serve(manager)
    assert manager.state_load.evictions_total == 0  # though newer ones replaced two
    evict(manager, 0, 5)
    assert (hit(manager), manager.state_load.evictions_total, manager.states.free_snapshots) == (0, 1, 8)
    serve(manager)
    manager.clear()
    assert (manager.state_load.evictions_total, manager.states.free_snapshots) == (1, 8)


def test_uses_count_and_time_passes():
    states, nodes = slots_with(100, 60, chain=False)
    states.touch(nodes[1].snapshot)  # 120 for its two uses
    assert states.evict() is nodes[0]
    small = Node(nodes[0].parent, (9,), [])
    states.attach(states.take_snapshot(), small, 30)  # 100 tokens later: 130
    assert states.evict() is nodes[1], "nothing stays forever"


def test_a_snapshot_that_a_planned_step_copies_from_is_not_evicted():
    states, nodes = slots_with(10, 20, chain=False)
    slot = states.acquire(nodes[0])
    assert [states.evict(), states.evict()] == [nodes[1], None]
    states.release_snapshot(slot)
    assert states.evict() is nodes[0]


def test_a_snapshot_between_two_takes_its_share_of_the_work():
    states, top = StateSlots(1, 2), Node(None, (), [])
    middle = top.children[(0,)] = Node(top, (0,), [])
    low = middle.children[(1,)] = Node(middle, (1,), [])
    states.attach(states.take_snapshot(), low, 500)
    states.attach(states.take_snapshot(), middle, 450)
    assert states.evict() is low  # 50 tokens beyond the other's 450
    assert states.evict() is middle


def test_positions_are_multiples_of_a_kernels_chunk_and_of_a_block():
    made = groups([PagedKV(1, 8, 8), State(((2,),), ("float32",))], "bf16")
    shared = {"max_concurrent": 4, "max_step_tokens": 512, "max_context": 1024}
    assert cache_sizes(made, 50, block_tokens=16, **shared).stride == 64
    assert cache_sizes(made, 50, block_tokens=24, **shared).stride == 192
    assert cache_sizes(made[:1], 50, block_tokens=16, **shared).stride == 16
