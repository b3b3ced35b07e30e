from wisp_runtime.engine.cache.blocks import BlockPool
from wisp_runtime.engine.cache.prefix import PrefixCache

A, B, C = (1, 1), (2, 2), (3, 3)


def cache_of(blocks=6):
    return PrefixCache(BlockPool(blocks), block_tokens=2)


def enter(cache, *path):
    """Compute ``path`` as a sequence would, enter it, and end; return its blocks."""
    node, blocks = cache.root, []
    for tokens in path:
        block = cache.take()
        node = cache.insert(node, tokens, block)
        blocks.append(node.block)
    cache.release(blocks)
    return blocks


def found(cache, *path):
    """The blocks of the longest known beginning of ``path``."""
    node, blocks = cache.root, []
    tokens = [token for block in path for token in block]
    for index in range(len(path)):
        node = cache.find(node, tokens, 2 * index)
        if node is None:
            break
        blocks.append(node.block)
    return blocks


def test_what_was_entered_is_found_again_from_its_beginning_only():
    cache = cache_of()
    blocks = enter(cache, A, B)
    assert found(cache, A, B) == blocks
    assert found(cache, A, C) == blocks[:1]
    assert found(cache, B) == []  # the same tokens after another beginning are other keys and values


def test_equal_hashes_are_not_equal_tokens():
    class Colliding(int):
        def __hash__(self):
            return 7

    cache = cache_of()
    enter(cache, (Colliding(1), Colliding(2)))
    assert found(cache, (Colliding(3), Colliding(4))) == []


def test_an_idle_block_is_available_and_still_found():
    cache = cache_of(blocks=2)
    enter(cache, A, B)
    assert (cache.pool.free, cache.available) == (0, 2)
    assert len(found(cache, A, B)) == 2


def test_a_held_block_is_not_evicted():
    cache = cache_of(blocks=2)
    blocks = enter(cache, A, B)
    cache.hold(cache.find(cache.root, A, 0))
    assert cache.available == 1
    assert cache.take() == blocks[1]
    assert found(cache, A, B) == blocks[:1]


def test_the_least_recently_used_end_of_a_branch_goes_first():
    cache = cache_of(blocks=4)
    enter(cache, A, B)
    enter(cache, A, C)  # shares A, which is then used later than B
    enter(cache, B)
    taken = [len(found(cache, A, B)), len(found(cache, A, C)), len(found(cache, B))]
    assert taken == [2, 2, 1]
    cache.take()
    assert [len(found(cache, A, B)), len(found(cache, A, C)), len(found(cache, B))] == [1, 2, 1]
    cache.take()
    assert [len(found(cache, A, B)), len(found(cache, A, C)), len(found(cache, B))] == [1, 1, 1]
    cache.take()
    assert [len(found(cache, A)), len(found(cache, B))] == [0, 1]


def test_the_same_tokens_computed_twice_are_kept_once():
    cache = cache_of()
    (kept,) = enter(cache, A)
    mine = cache.take()
    node = cache.insert(cache.root, A, mine)
    assert node.block == kept
    assert cache.pool.holders(mine) == 0
    assert cache.pool.holders(kept) == 2  # the tree, and now me


def test_after_forgetting_nothing_is_found_and_no_block_is_lost():
    cache = cache_of(blocks=3)
    enter(cache, A, B)
    mine = cache.hold(cache.find(cache.root, A, 0))
    cache.forget()
    assert found(cache, A, B) == []
    assert cache.available == 2
    cache.release([mine])
    assert sorted(cache.take() for _ in range(3)) == [0, 1, 2]
