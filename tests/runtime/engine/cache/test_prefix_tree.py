from wisp_runtime.engine.cache.prefix_tree import GroupBlocks, PrefixTree
from wisp_runtime.engine.cache.state_slots import StateSlots

A, B, C = (1, 1), (2, 2), (3, 3)


def tree_of(blocks=6):
    return PrefixTree([GroupBlocks(0, blocks, None)], StateSlots(0, 0), block_tokens=2)


def take(tree):
    return tree.take(tree.groups[0])


def insert(tree, *path):
    """Compute ``path`` as a sequence would, insert it, and end; return its blocks."""
    node, blocks = tree.root, []
    for tokens in path:
        block = take(tree)
        node = tree.insert(node, tokens, [block])
        blocks += node.blocks
    tree.groups[0].release(blocks)
    return blocks


def known(tree, *path):
    """The blocks of the longest known beginning of ``path``."""
    node, blocks = tree.root, []
    tokens = [token for block in path for token in block]
    for index in range(len(path)):
        node = tree.find(node, tokens, 2 * index)
        if node is None:
            break
        blocks += node.blocks
    return blocks


def test_what_was_inserted_is_found_again_from_its_beginning_only():
    tree = tree_of()
    blocks = insert(tree, A, B)
    assert known(tree, A, B) == blocks
    assert known(tree, A, C) == blocks[:1]
    assert known(tree, B) == []  # the same tokens after another beginning are other keys and values


def test_equal_hashes_are_not_equal_tokens():
    class Colliding(int):
        def __hash__(self):
            return 7

    tree = tree_of()
    insert(tree, (Colliding(1), Colliding(2)))
    assert known(tree, (Colliding(3), Colliding(4))) == []


def test_an_evictable_block_is_available_and_still_found():
    tree = tree_of(blocks=2)
    insert(tree, A, B)
    assert (tree.groups[0].pool.free, tree.groups[0].available) == (0, 2)
    assert len(known(tree, A, B)) == 2


def test_a_block_that_is_referred_to_is_not_evicted():
    tree = tree_of(blocks=2)
    blocks = insert(tree, A, B)
    tree.groups[0].acquire(tree.find(tree.root, A, 0).blocks[0])
    assert tree.groups[0].available == 1
    assert take(tree) == blocks[1]
    assert known(tree, A, B) == blocks[:1]


def test_the_least_recently_used_end_of_a_branch_goes_first():
    tree = tree_of(blocks=4)
    insert(tree, A, B)
    insert(tree, A, C)  # shares A, which is then used later than B
    insert(tree, B)
    taken = [len(known(tree, A, B)), len(known(tree, A, C)), len(known(tree, B))]
    assert taken == [2, 2, 1]
    take(tree)
    assert [len(known(tree, A, B)), len(known(tree, A, C)), len(known(tree, B))] == [1, 2, 1]
    take(tree)
    assert [len(known(tree, A, B)), len(known(tree, A, C)), len(known(tree, B))] == [1, 1, 1]
    take(tree)
    assert [len(known(tree, A)), len(known(tree, B))] == [0, 1]


def test_the_same_tokens_computed_twice_are_kept_once():
    tree = tree_of()
    (kept,) = insert(tree, A)
    mine = take(tree)
    node = tree.insert(tree.root, A, [mine])
    assert node.blocks[0] == kept
    assert tree.groups[0].pool.ref_count(mine) == 0
    assert tree.groups[0].pool.ref_count(kept) == 2  # the tree, and now me


def test_after_clearing_nothing_is_found_and_no_block_is_lost():
    tree = tree_of(blocks=3)
    insert(tree, A, B)
    mine = tree.groups[0].acquire(tree.find(tree.root, A, 0).blocks[0])
    tree.clear()
    assert known(tree, A, B) == []
    assert tree.groups[0].available == 2
    tree.groups[0].release([mine])
    assert sorted(take(tree) for _ in range(3)) == [0, 1, 2]
