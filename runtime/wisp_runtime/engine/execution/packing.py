"""Lay a plan out as the arrays of one step, in memory that is given: the runner's own, or page-locked.

A token that is awaited is packed as the placeholder ``-1 - r``: row r of the tokens that the step before
samples, which the device looks up when this step runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from wisp_plan.memory.buffers.inputs import ARRAY_ALIGNMENT_BYTES
from wisp_runtime.batch import Array, Batch, StepKind
from wisp_runtime.engine.scheduling.plan import Chunk, Plan


class Shape(NamedTuple):
    """Sizes of a step.

    Attributes:
        tokens, sequences: N, B.
        rows: R, rows of logits.
        groups: paged groups of the model.
        has_states: whether any layer has a recurrent state.
    """

    tokens: int
    sequences: int
    rows: int
    groups: int = 1
    has_states: bool = False


class Arrays(NamedTuple):
    """Small arrays of a step, as :class:`wisp_runtime.batch.Batch` describes them; of the host or of a
    device.

    Attributes:
        slots: ``[G, N]``, slots of each paged group.
        state_slots: ``[B]``, or empty.
    """

    slots: Array
    logit_rows: Array
    tokens: Array
    positions: Array
    query_starts: Array
    context_lengths: Array
    state_slots: Array


def _lengths(shape: Shape) -> tuple[tuple[int, type[np.signedinteger]], ...]:
    tokens, sequences, rows, groups, has_states = shape
    return (
        (groups * _slots_stride(tokens), np.int64),
        (rows, np.int64),
        (tokens, np.int32),
        (tokens, np.int32),
        (sequences + 1, np.int32),
        (sequences, np.int32),
        (sequences * has_states, np.int32),
    )


def size_bytes(shape: Shape) -> int:
    """Return the bytes that the arrays of a step take."""
    return sum(_aligned(length * np.dtype(kind).itemsize) for length, kind in _lengths(shape))


def view_arrays(memory: Array, shape: Shape) -> Arrays:
    """View ``memory``, ``[size_bytes(shape)]`` uint8 or more of host or device, as the arrays of a step."""
    arrays, start = [], 0
    for length, kind in _lengths(shape):
        size = length * np.dtype(kind).itemsize
        array = memory[start : start + size].view(kind) if length else np.empty(0, kind)
        arrays.append(array)
        start += _aligned(size)
    arrays[0] = arrays[0].reshape(shape.groups, _slots_stride(shape.tokens))[:, : shape.tokens]
    return Arrays(*arrays)


def shape_of(plan: Plan) -> Shape:
    """Return the shape of a plan's step."""
    cache = plan[0].sequence.cache
    return Shape(
        sum(chunk.tokens for chunk in plan),
        len(plan),
        sum(chunk.logits for chunk in plan),
        len(cache.tables),
        cache.state_slot >= 0,
    )


def fill(arrays: Arrays, plan: Plan, tables: Sequence[Array], block_tokens: int) -> None:
    """Write the chunks of ``plan`` one after the other; rows beyond them are padding.

    A padding row is a sequence of one token that reads nothing (context 0) and writes nothing (slot -1).

    Args:
        arrays: arrays of the plan's shape; or, for a plan that samples nothing, with one unused row of
            logits; or with as many more tokens, sequences and rows, all padding.
        tables: block tables of each paged group, ``[B, W]`` int32.
        block_tokens: Tb, tokens a KV block.
    """
    sequences = len(plan)
    if only_decodes(plan):
        tokens = [_only_token(chunk) for chunk in plan]
        positions = np.array([chunk.start for chunk in plan], np.int32)
        rows, ends, query_ends = np.arange(sequences), positions + 1, np.arange(1, sequences + 1)
    else:
        counts = np.array([chunk.tokens for chunk in plan], np.int32)
        starts = np.array([chunk.start for chunk in plan], np.int32)
        tokens = [token for chunk in plan for token in _tokens(chunk)]
        rows, ends, query_ends = np.repeat(np.arange(sequences), counts), starts + counts, counts.cumsum()
        positions = np.arange(len(tokens), dtype=np.int32) + (ends - query_ends)[rows]
    blocks, offsets = np.divmod(positions, block_tokens)
    count = len(tokens)
    arrays.tokens[:count] = tokens
    arrays.positions[:count] = positions
    for slots, table in zip(arrays.slots, tables, strict=True):
        slots[:count] = table[rows, blocks] * np.int64(block_tokens) + offsets
    if len(arrays.state_slots):
        arrays.state_slots[:sequences] = [chunk.sequence.cache.state_slot for chunk in plan]
    arrays.query_starts[0] = 0
    arrays.query_starts[1 : sequences + 1] = query_ends
    arrays.context_lengths[:sequences] = ends
    logit_rows = _logit_rows(query_ends, plan)
    arrays.logit_rows[: len(logit_rows)] = logit_rows
    _pad(arrays, count, sequences, len(logit_rows))


def only_decodes(plan: Plan) -> bool:
    """Return whether every chunk of ``plan`` is a decode: one token each."""
    return [chunk.kind for chunk in plan].count(StepKind.DECODE) == len(plan)


def _logit_rows(query_ends: Array, plan: Plan) -> Array:
    """Return the rows of the last tokens of each chunk, ``logits`` of each, ``[R]``."""
    counts = [chunk.logits for chunk in plan]
    if counts.count(1) == len(counts):
        return query_ends - 1
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) + np.repeat(query_ends - ends, counts)


def pack(plan: Plan, block_tokens: int) -> Batch:
    """Lay out ``plan`` in memory of its own.

    Args:
        plan: at least one chunk.
        block_tokens: Tb, tokens a KV block.
    """
    shape = shape_of(plan)
    arrays = view_arrays(np.empty(size_bytes(shape), np.uint8), shape)
    tables = [_block_tables(plan, group) for group in range(shape.groups)]
    fill(arrays, plan, tables, block_tokens)
    return batch_of(arrays, tables, plan)


def batch_of(arrays: Arrays, tables: Sequence[Array], plan: Plan) -> Batch:
    """Make a batch of the arrays of ``plan``, filled or yet to be."""
    has_groups, kind = len(tables) > 0, StepKind.DECODE if only_decodes(plan) else None
    batch = Batch(
        tokens=arrays.tokens,
        positions=arrays.positions,
        slots=arrays.slots[0] if has_groups else arrays.slots.reshape(-1),
        query_starts=arrays.query_starts,
        context_lengths=arrays.context_lengths,
        block_tables=tables[0] if has_groups else arrays.context_lengths[:, None][:, :0],
        logit_rows=arrays.logit_rows,
        state_slots=arrays.state_slots if len(arrays.state_slots) else None,
        query_starts_host=(0, *accumulate(chunk.tokens for chunk in plan)),
        context_lengths_host=tuple(chunk.start + chunk.tokens for chunk in plan),
        kind=kind,
        wants_states=kind is None and any(chunk.sequence.needs_all_states for chunk in plan),
    )
    if len(tables) < 2:
        return batch
    groups = zip(arrays.slots[1:], tables[1:], strict=True)
    others = tuple(replace(batch, slots=slots, block_tables=table) for slots, table in groups)
    return replace(batch, other_groups=others)


def with_fields(batch: Batch, **fields: Any) -> Batch:
    """Return ``batch`` with other ``fields``, for all its groups."""
    others = tuple(replace(other, **fields) for other in batch.other_groups)
    return replace(batch, **fields, other_groups=others)


def _only_token(chunk: Chunk) -> int:
    tokens = chunk.sequence.tokens
    return tokens[chunk.start] if chunk.start < len(tokens) else -1 - chunk.sequence.pending_sample_row


def _tokens(chunk: Chunk) -> Sequence[int]:
    tokens = chunk.sequence.tokens[chunk.start : chunk.start + chunk.tokens]
    return tokens or [-1 - chunk.sequence.pending_sample_row]


def _pad(arrays: Arrays, tokens: int, sequences: int, rows: int) -> None:
    arrays.tokens[tokens:] = 0
    arrays.positions[tokens:] = 0
    arrays.slots[:, tokens:] = -1
    arrays.state_slots[sequences:] = -1
    arrays.context_lengths[sequences:] = 0
    arrays.query_starts[sequences + 1 :] = np.arange(tokens + 1, len(arrays.tokens) + 1)
    padding = np.arange(tokens, tokens + len(arrays.logit_rows) - rows)
    arrays.logit_rows[rows:] = np.minimum(padding, len(arrays.tokens) - 1)


def _block_tables(plan: Plan, group: int) -> Array:
    """Return ``[B, W]`` int32, W the most blocks a sequence of the plan has of a group."""
    width = max(len(chunk.sequence.cache.tables[group]) for chunk in plan)
    tables = np.zeros((len(plan), width), dtype=np.int32)
    for row, chunk in zip(tables, plan, strict=True):
        blocks = chunk.sequence.cache.tables[group]
        row[: len(blocks)] = blocks
    return tables


def _slots_stride(tokens: int) -> int:
    """Return the numbers from one group's slots to the next's: kernels take the slots of each aligned."""
    return _aligned(tokens * np.dtype(np.int64).itemsize) // np.dtype(np.int64).itemsize


def _aligned(size: int) -> int:
    return -(-size // ARRAY_ALIGNMENT_BYTES) * ARRAY_ALIGNMENT_BYTES
