import numpy as np
import pytest

from wisp_runtime.batch import StepKind
from wisp_runtime.engine.cache.block_table import BlockTables
from wisp_runtime.engine.cache.sequence_cache import SequenceCache
from wisp_runtime.engine.execution.packing import Shape, fill, pack, shape_of, size_bytes, view_arrays
from wisp_runtime.engine.scheduling.plan import Chunk
from wisp_runtime.engine.scheduling.sequence import Sequence
from wisp_runtime.engine.transport.messages import Submit


def sequence_of(prompt, blocks):
    sequence = Sequence(Submit("r", tuple(prompt), 9), priority_key=(1, 1), max_length=99, eos=frozenset())
    sequence.cache = SequenceCache.of_blocks(blocks)
    return sequence


def chunk(prompt, blocks, start, tokens):
    return Chunk.prefill(sequence_of(prompt, blocks), start, tokens, samples=start + tokens == len(prompt))


def decode(prompt, blocks):
    return Chunk.decode(sequence_of(prompt, blocks), len(prompt) - 1)


def test_chunks_lie_one_after_the_other_and_every_token_knows_its_place():
    plan = (
        decode(range(10, 17), [5, 2]),
        chunk(range(20, 31), [7, 1, 4], 3, 4),  # the middle of a prompt, across two blocks
        chunk(range(40, 42), [0], 0, 2),  # a whole prompt
    )
    batch = pack(plan, block_tokens=4)
    expect = {
        "tokens": [16, 23, 24, 25, 26, 40, 41],
        "positions": [6, 3, 4, 5, 6, 0, 1],
        "slots": [2 * 4 + 2, 7 * 4 + 3, 1 * 4, 1 * 4 + 1, 1 * 4 + 2, 0, 1],
        "query_starts": [0, 1, 5, 7],
        "context_lengths": [7, 7, 2],
        "block_tables": [[5, 2, 0], [7, 1, 4], [0, 0, 0]],
        "logit_rows": [0, 6],
    }
    assert {name: getattr(batch, name).tolist() for name in expect} == expect
    assert (batch.query_starts_host, batch.context_lengths_host) == ((0, 1, 5, 7), (7, 7, 2))


def test_the_arrays_have_the_types_that_ops_expect():
    batch = pack((chunk(range(3), [0], 0, 3),), block_tokens=4)
    types = {
        "tokens": np.int32,
        "positions": np.int32,
        "slots": np.int64,
        "query_starts": np.int32,
        "context_lengths": np.int32,
        "block_tables": np.int32,
        "logit_rows": np.int64,
    }
    assert {name: getattr(batch, name).dtype for name in types} == types


def test_a_step_that_samples_nothing_wants_no_logits():
    assert pack((chunk(range(9), [0, 1, 2], 0, 5),), block_tokens=4).logit_rows.shape == (0,)


def test_a_chunk_gets_as_many_rows_of_logits_as_it_wants():
    verify = chunk(range(10, 17), [5, 2], 3, 4)._replace(kind=StepKind.VERIFY, logits=3, max_new_tokens=4)
    plan = (decode([1, 2], [3]), verify, chunk(range(20, 31), [7, 1, 4], 3, 4), decode([4], [6]))
    assert shape_of(plan) == Shape(10, 4, 5)
    assert pack(plan, block_tokens=4).logit_rows.tolist() == [0, 2, 3, 4, 9]


def awaiting(prompt, blocks, row):
    """A decode whose token is sampled by row ``row`` of the step before."""
    one = Chunk.decode(sequence_of(prompt, blocks), len(prompt))
    one.sequence.pending_sample_row = row
    return one


@pytest.mark.parametrize("others", [(), (chunk(range(20, 31), [7, 1, 4], 3, 4),)], ids=["decodes", "mixed"])
def test_a_token_that_is_awaited_is_named_by_its_row(others):
    plan = (decode([10, 11], [3]), awaiting([12, 13, 14], [5], 0), awaiting([1] * 4, [2, 6], 3), *others)
    batch = pack(plan, block_tokens=4)
    assert batch.tokens.tolist()[:3] == [11, -1, -4]
    assert batch.positions.tolist()[:3] == [1, 3, 4]
    assert batch.slots.tolist()[:3] == [13, 23, 24]


def test_rows_beyond_the_plan_are_sequences_that_touch_nothing():
    plan = (decode([10, 11], [3]), awaiting([12, 13, 14], [5], 0))
    shape = Shape(4, 4, 4)
    memory = np.full(size_bytes(shape), 77, np.uint8)  # whatever the last step left
    arrays = view_arrays(memory, shape)
    fill(arrays, plan, [np.array([[3], [5]], np.int32)], 4)
    assert {name: getattr(arrays, name).tolist() for name in arrays._fields} == {
        "tokens": [11, -1, 0, 0],
        "positions": [1, 3, 0, 0],
        "slots": [[13, 23, -1, -1]],
        "query_starts": [0, 1, 2, 3, 4],
        "context_lengths": [2, 4, 0, 0],
        "logit_rows": [0, 1, 2, 3],
        "state_slots": [],
    }


def test_each_group_has_tables_of_its_own_and_states_a_slot():
    sequences = [sequence_of(range(6), ()) for _ in range(2)]
    for number, sequence in enumerate(sequences):
        sequence.cache = SequenceCache(groups=2)
        sequence.cache.tables[0].extend([number, 4])
        sequence.cache.tables[1].extend([7, 8 + number])
        sequence.cache.state_slot = 5 - number
    batch = pack(tuple(Chunk.decode(sequence, 5) for sequence in sequences), block_tokens=4)
    second = batch.of_group(1)
    assert batch.of_group(0) is batch
    assert [group.block_tables.tolist() for group in (batch, second)] == [[[0, 4], [1, 4]], [[7, 8], [7, 9]]]
    assert [group.slots.tolist() for group in (batch, second)] == [[17, 17], [33, 37]]
    assert second.positions is batch.positions
    assert batch.state_slots.tolist() == [5, 4]


def test_an_unused_row_of_logits_is_one_that_exists():
    plan = (chunk(range(9), [0, 1, 2], 0, 5),)
    shape = shape_of(plan)._replace(rows=1)
    arrays = view_arrays(np.empty(size_bytes(shape), np.uint8), shape)
    fill(arrays, plan, [np.array([[0, 1, 2]], np.int32)], 4)
    assert arrays.logit_rows.tolist() == [4]


@pytest.mark.parametrize(
    "shape", [Shape(1, 1, 1), Shape(7, 3, 2), Shape(8192, 256, 256), Shape(7, 3, 2, 3, True)]
)
def test_the_arrays_of_a_step_lie_apart_and_aligned(shape):
    memory = np.zeros(size_bytes(shape), np.uint8)
    for number, one in enumerate(view_arrays(memory, shape)):
        one[:] = number
        assert (one.ctypes.data - memory.ctypes.data) % 16 == 0
    for number, one in enumerate(view_arrays(memory, shape)):
        assert (one == number).all()
    for slots in view_arrays(memory, shape).slots:
        assert (slots.ctypes.data - memory.ctypes.data) % 16 == 0
        assert slots.flags.c_contiguous


def test_only_rows_that_changed_are_written_again():
    tables = BlockTables(4, 3)
    first, second, third = (chunk(range(9), blocks, 0, 1) for blocks in ([5], [2, 6], [1]))
    assert tables.update((first, second, third)) == (slice(0, 3), slice(0, 2))
    assert tables.update((first, second, third)) is None
    second.sequence.cache.tables[0].append(7)
    assert tables.update((first, second, third)) == (slice(1, 2), slice(0, 3))
    third.sequence.cache.replace(0, 0, 8)
    assert tables.update((first, second, third)) == (slice(2, 3), slice(0, 1))
    assert tables.table[:3].tolist() == [[5, 0, 0], [2, 6, 7], [8, 0, 0]]
    # The first has left: the others move up.
    assert tables.update((second, third)) == (slice(0, 2), slice(0, 3))
    assert [tables.table[0].tolist(), tables.table[1, 0]] == [[2, 6, 7], 8]
    assert tables.update((second,)) is None
    third.sequence.cache.tables[0].append(9)
    assert tables.update((second, third)) == (slice(1, 2), slice(0, 2))
