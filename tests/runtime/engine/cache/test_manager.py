"""The cache manager's rules, one at a time; what they add up to is in test_engine_properties.py."""

import sys

import pytest

from wisp_plan.memory.cache import CacheGroup, CacheSizes, Pool
from wisp_plan.spec.cache import PagedKV, State
from wisp_runtime.engine.cache.manager import CacheManager

FULL, WINDOW = PagedKV(1, 1, 1), PagedKV(1, 1, 1, window=5)
BLOCK = 2
PROMPT = tuple(range(1, 14))  # six blocks and a token


def manager_of(*specs, blocks=20, states=0, snapshots=8, max_step_tokens=4):
    pools = tuple(Pool(CacheGroup(spec, (index,)), blocks) for index, spec in enumerate(specs))
    groups = (CacheGroup(State(((1,),), ("float32",)), (9,)),) if states else ()
    sizes = CacheSizes(BLOCK, pools, groups, states, snapshots if states else 0)
    return CacheManager(sizes, max_step_tokens)


def admit(manager, tokens=PROMPT, **fields):
    options = {"reusable_tokens": sys.maxsize, "spare_blocks": None}
    return manager.admit(tokens, **(options | fields))


def compute(manager, cache, tokens=PROMPT, step=4):
    """Compute a sequence from where its hit ends; return the ends of the chunks that left a snapshot."""
    start, snapshots = cache.cached_blocks * BLOCK, []
    while start < len(tokens):
        end = start + manager.align(cache, start, min(step, len(tokens) - start), len(tokens))
        assert manager.extend(cache, start, end)
        manager.take_restore(cache)
        if manager.has_states and manager.take_snapshot(cache, end) >= 0:
            snapshots.append(end)
        manager.publish(cache, tokens, end)
        start = end
    return snapshots


def serve(manager, tokens=PROMPT, **fields):
    """Run a sequence to its end; return its snapshots."""
    cache = admit(manager, tokens, **fields)
    snapshots = compute(manager, cache, tokens)
    manager.release(cache)
    return snapshots


def hit(manager, tokens=PROMPT, **fields):
    """The tokens that a sequence finds; it is released again."""
    cache = admit(manager, tokens, **fields)
    manager.release(cache)
    return cache.cached_blocks * BLOCK


def evict(manager, group, node_number):
    """Take the block of a group from a node of ``PROMPT``, as if others had needed it."""
    node = manager.tree.root
    for index in range(node_number + 1):
        node = manager.tree.find(node, PROMPT, index * BLOCK)
    manager.groups[group].evictable.move_to_end(node.blocks[group], last=False)
    manager.tree._evict(manager.groups[group])


@pytest.mark.parametrize("specs", [(FULL,), (WINDOW,), (FULL, WINDOW)])
def test_a_salt_shares_its_prefixes_with_no_other(specs):
    manager = manager_of(*specs)
    serve(manager, salt=7)
    assert [hit(manager, salt=salt) for salt in (0, 7, 8)] == [0, 12, 0]
    serve(manager)
    assert [hit(manager, salt=salt) for salt in (0, 7, 8)] == [12, 12, 0]
    assert manager.used_blocks == 0
    while manager.groups[0].evictable:
        manager.tree._evict(manager.groups[0])
    for group in manager.groups[1:]:
        while group.evictable:
            manager.tree._evict(group)
    assert not manager.tree.root.children  # salts leave nothing behind


@pytest.mark.parametrize("specs", [(FULL,), (WINDOW,), (FULL, WINDOW), (WINDOW, FULL)])
def test_a_prompt_that_was_computed_is_found_but_for_its_last_token(specs):
    manager = manager_of(*specs)
    assert hit(manager) == 0
    serve(manager)
    assert hit(manager) == 12
    assert hit(manager, PROMPT[:12]) == 10  # its last token must be computed
    assert hit(manager, (*PROMPT[:6], 99, 98)) == 6
    assert manager.used_blocks == 0


@pytest.mark.parametrize(
    ("gone", "expect"),
    [
        ([0], 12),  # token 12 sees tokens 8 to 12, which lie in the last two blocks
        ([0, 1, 2, 3], 12),
        ([4], 8),  # token 8 sees 4 to 8: blocks 2 and 3
        ([5], 10),  # token 10 sees 6 to 10: blocks 3 and 4
        ([3, 5], 6),
        ([2, 4], 4),
        ([1, 3, 5], 2),
        ([0, 2, 4], 0),
        ([0, 1, 2, 3, 4, 5], 0),
    ],
)
def test_a_hit_of_a_group_with_a_window_needs_the_blocks_that_its_next_token_sees(gone, expect):
    manager = manager_of(WINDOW)
    serve(manager)
    for number in gone:
        evict(manager, 0, number)
    assert hit(manager) == expect
    assert not manager.tree.root.children or gone != [0, 1, 2, 3, 4, 5], "nothing is left of such nodes"


def test_what_a_group_with_a_window_lost_is_computed_and_published_again():
    manager = manager_of(FULL, WINDOW)
    serve(manager)
    for number in (4, 5):
        evict(manager, 1, number)
    assert hit(manager) == 8
    serve(manager)
    assert hit(manager) == 12
    assert [len(group.nodes) for group in manager.groups] == [6, 6]


def test_a_node_that_loses_its_block_of_a_group_without_a_window_is_gone_for_all():
    manager = manager_of(FULL, WINDOW, states=1)
    serve(manager)
    evict(manager, 0, 5)
    assert [len(group.nodes) for group in manager.groups] == [5, 5]
    assert (hit(manager), manager.states.free_snapshots) == (0, 8)  # its snapshot went with it


def test_blocks_behind_the_window_are_given_back_as_a_sequence_goes_on():
    manager, tokens = manager_of(WINDOW, blocks=5), tuple(range(40))
    cache, used = admit(manager, tokens), []
    for start in range(0, 40, 4):
        assert manager.extend(cache, start, start + 4)
        manager.publish(cache, tokens, start + 4)
        used.append(manager.used_blocks)
    assert used == [2, *[4] * 9]  # the window of token n begins within the block two before its own
    assert manager.admit((1,), reusable_tokens=0, spare_blocks=1) is None


def test_blocks_that_are_not_published_yet_are_not_given_back():
    manager, tokens = manager_of(WINDOW), tuple(range(40))
    cache = admit(manager, tokens)
    for start in range(0, 12, 4):
        manager.extend(cache, start, start + 4)
    assert manager.used_blocks == 6
    manager.publish(cache, tokens, 12)
    manager.extend(cache, 12, 16)
    assert manager.used_blocks == 4


@pytest.mark.parametrize("specs", [(FULL,), (WINDOW,), (FULL, WINDOW), ()])
def test_a_sequence_that_ends_early_leaves_nothing_behind(specs):
    manager = manager_of(*specs, states=2)
    serve(manager)
    cache = admit(manager, (*PROMPT, 99, 98, 97))
    manager.extend(cache, 12, 14)
    assert manager.take_snapshot(cache, 14) >= 0
    manager.release(cache)  # before the step was committed
    assert (manager.used_blocks, manager.states.free, manager.states.free_snapshots) == (0, 2, 8 - 1)
