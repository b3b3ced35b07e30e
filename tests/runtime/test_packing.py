from array import array

import numpy as np

from wisp_runtime.engine.messages import Submit
from wisp_runtime.engine.packing import pack
from wisp_runtime.engine.plan import Chunk
from wisp_runtime.engine.sequence import Sequence


def chunk(prompt, blocks, start, tokens):
    sequence = Sequence(Submit("r", tuple(prompt), 9), rank=(1, 1), max_length=99, eos=frozenset())
    sequence.blocks = array("i", blocks)
    return Chunk(sequence, start, tokens, start + tokens == len(prompt))


def test_chunks_lie_one_after_the_other_and_every_token_knows_its_place():
    plan = (
        chunk(range(10, 17), [5, 2], 6, 1),  # a decode
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


def test_a_step_that_draws_nothing_wants_no_logits():
    assert pack((chunk(range(9), [0, 1, 2], 0, 5),), block_tokens=4).logit_rows.shape == (0,)
