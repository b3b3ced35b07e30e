"""Buffers of sampling: adjusted logits, histograms and candidates of each row, and the sampled tokens."""

from __future__ import annotations

from wisp_plan.memory.alternatives import MAX_ALTERNATIVES
from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec

BINS, CANDIDATES = 3584, 4096
"""Bins of a row's histogram, tokens that are sorted; the kernels' manifest has both too."""

ENTRIES_A_ROW, ENTRY_BYTES = 4096, 8
"""Penalties and biases of a row at most; an entry is a token id and a count or a bias."""

HEADER_BYTES, ROW_BYTES = 64, 64
"""Layout of a step's parameters: a header, and a record for each row."""


def sampling(spec: ModelSpec, step: StepSizes) -> tuple[Buffer, ...]:
    """Return the buffers of the largest step's rows."""
    rows = step.max_sequences
    return sampling_rows(spec.vocab, rows, max_entries(spec.vocab, rows), step.sm_count)


def max_entries(vocab: int, rows: int) -> int:
    """Return the penalties and biases of ``rows`` rows at most."""
    return rows * min(2 * vocab, ENTRIES_A_ROW)


def sampling_rows(vocab: int, rows: int, entries: int, sm_count: int) -> tuple[Buffer, ...]:
    """Return the buffers of ``rows`` rows of ``vocab`` logits.

    A task is the choice of a row's token, or its log-probabilities.

    Args:
        entries: penalties and biases of all rows together.
    """
    tasks = 2 * rows
    return (
        Buffer("sampling.adjusted", (rows, vocab), "float32"),
        Buffer("sampling.argmax", (tasks,), "uint64"),
        Buffer("sampling.partials", (max(tasks, 2 * sm_count),), "uint64"),
        Buffer("sampling.masses", (tasks, BINS), "uint64"),
        Buffer("sampling.totals", (tasks,), "uint64"),
        Buffer("sampling.candidates", (tasks, CANDIDATES), "uint64"),
        Buffer("sampling.counts", (tasks, BINS), "uint32"),
        Buffer("sampling.candidate_count", (tasks,), "uint32"),
        Buffer("sampling.arrived", (tasks,), "uint32", is_zeroed=True),
        Buffer("sampling.tokens", (rows,), "int32"),
        Buffer("sampling.is_sound", (rows,), "uint8"),
        Buffer("sampling.logprobs", (rows,), "float32"),
        Buffer("sampling.top_ids", (rows, MAX_ALTERNATIVES), "int32"),
        Buffer("sampling.top_logprobs", (rows, MAX_ALTERNATIVES), "float32"),
        Buffer("sampling.entries", (entries * ENTRY_BYTES,), "uint8"),
        Buffer("sampling.masks", (rows * -(-vocab // 32) * 4,), "uint8"),
        Buffer("sampling.seen", (rows * -(-vocab // 32) * 4,), "uint8"),
    )
