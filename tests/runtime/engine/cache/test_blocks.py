import pytest

from wisp_runtime.engine.cache.blocks import BlockPool, blocks_for


@pytest.mark.parametrize(
    ("tokens", "block_tokens", "expect"), [(0, 16, 0), (1, 16, 1), (16, 16, 1), (17, 16, 2), (5, 1, 5)]
)
def test_a_started_block_counts_whole(tokens, block_tokens, expect):
    assert blocks_for(tokens, block_tokens) == expect


def test_every_block_is_handed_out_once_and_comes_back():
    pool = BlockPool(3)
    assert sorted(pool.take() for _ in range(3)) == [0, 1, 2]
    assert pool.free == 0
    assert [pool.release(block) for block in range(3)] == [0, 0, 0]
    assert pool.free == 3


def test_a_shared_block_is_free_only_when_its_last_reference_is_released():
    pool = BlockPool(1)
    block = pool.take()
    pool.acquire(block)
    assert (pool.release(block), pool.free) == (1, 0)
    assert (pool.release(block), pool.free) == (0, 1)


def test_the_same_history_hands_out_the_same_blocks():
    def history():
        pool = BlockPool(5)
        first = [pool.take() for _ in range(4)]
        pool.release(first[1])
        pool.release(first[3])
        return first + [pool.take() for _ in range(3)]

    assert history() == history()


def test_a_free_block_can_neither_be_acquired_nor_released():
    with pytest.raises(AssertionError, match="block 0 is free"):
        BlockPool(1).acquire(0)
    with pytest.raises(AssertionError, match="block 0 is free"):
        BlockPool(1).release(0)
