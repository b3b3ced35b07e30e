"""Sampling parameters of a step, and its sampled tokens. The sampling itself is in ``ops``."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sized
from collections.abc import Sequence as Items
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from wisp_runtime.batch import Array, Sampled, SamplingBatch
from wisp_runtime.engine.constrained.masks import rows_of
from wisp_runtime.engine.scheduling.plan import Chunk, Plan, SampledToken
from wisp_runtime.engine.scheduling.sequence import Sequence, Status, TokenCounts
from wisp_runtime.engine.transport.messages import SamplingParams, TokenLogprobs

_NO_COUNTS = TokenCounts()
_SEED_MASK = (1 << 64) - 1


def sampling_batch(plan: Plan) -> SamplingBatch:
    """Collect the sampling parameters of the chunks of ``plan`` that sample, one row each, in order."""
    sampling = [chunk for chunk in plan if chunk.samples]
    params = [chunk.sequence.request.sampling for chunk in sampling]
    biases = [chunk.sequence.biases for chunk in sampling]
    return SamplingBatch(
        temperature=np.array([param.temperature for param in params], dtype=np.float32),
        top_k=np.array([param.top_k for param in params], dtype=np.int32),
        top_p=np.array([param.top_p for param in params], dtype=np.float32),
        min_p=np.array([param.min_p for param in params], dtype=np.float32),
        seeds=np.array([param.seed & _SEED_MASK for param in params], dtype=np.uint64),
        steps=_steps(sampling),
        repetition_penalty=np.array([param.repetition_penalty for param in params], dtype=np.float32),
        presence_penalty=np.array([param.presence_penalty for param in params], dtype=np.float32),
        frequency_penalty=np.array([param.frequency_penalty for param in params], dtype=np.float32),
        **_counts([chunk.sequence for chunk in sampling]),
        seen=_seen([chunk.sequence for chunk in sampling]),
        bitmask=_bitmask([chunk.sequence for chunk in sampling]),
        bias_starts=_starts([ids for ids, _ in biases]),
        bias_ids=_concatenated([ids for ids, _ in biases], np.int32),
        biases=_concatenated([values for _, values in biases], np.float32),
        logprobs=max((-1 if param.logprobs is None else param.logprobs for param in params), default=-1),
    )


def _counts(sequences: list[Sequence]) -> dict[str, Array]:
    """Return the tokens that penalties count and their counts, as fields of a sampling batch."""
    counting = [_NO_COUNTS if sequence.counts is None else sequence.counts for sequence in sequences]
    return {
        "count_starts": _starts([row.ids for row in counting]),
        "count_ids": _concatenated([row.ids for row in counting], np.int32),
        "counts": _concatenated([row.counts for row in counting], np.int32),
    }


def _seen(sequences: list[Sequence]) -> Array | None:
    """Return the tokens that repetition penalties count, ``[R, ceil(V / 32)]``; None where no row has one."""
    rows = [sequence.seen().words if sequence.has_repetition else None for sequence in sequences]
    first = next((row for row in rows if row is not None), None)
    if first is None:
        return None
    none = np.zeros_like(first)
    return np.stack([none if row is None else row for row in rows])


def _bitmask(sequences: list[Sequence]) -> Array | None:
    """Return the tokens that rules allow, ``[R, ceil(V / 32)]``; None where no row has a rule.

    The token of a sequence that ended since its plan was made is dropped: it needs no mask.
    """
    return rows_of([None if each.status is Status.FINISHED else each.mask for each in sequences])


def _concatenated(rows: list[array[Any]], dtype: type[np.generic]) -> Array:
    """Copy rows into one ``[sum of lengths]``; an array cannot grow while NumPy views it."""
    filled = [np.frombuffer(row, dtype) for row in rows if row]
    return np.concatenate(filled) if filled else np.empty(0, dtype)


def has_pending_counts(plan: Plan) -> bool:
    """Return whether sampling parameters of ``plan`` need tokens that the step before has yet to give."""
    counting = [chunk for chunk in plan if chunk.sequence.counts_tokens]
    return any(chunk.samples and chunk.sequence.pending_sample_row >= 0 for chunk in counting)


class SamplingRows:
    """Sampling parameters of step after step, collected anew only when other sequences sample.

    Positions are new in each step, and so are the counts of penalties and the masks of grammars.
    """

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._batch: SamplingBatch | None = None
        self._has_penalties = False

    def batch(self, plan: Plan) -> SamplingBatch:
        """Return the result of :func:`sampling_batch`."""
        sampling = [chunk for chunk in plan if chunk.max_new_tokens]
        sequences = [chunk.sequence for chunk in sampling]
        if self._batch is None or sequences != self._sequences:
            self._batch, self._sequences = sampling_batch(plan), sequences
            self._has_penalties = any(sequence.counts_tokens for sequence in sequences)
            return self._batch
        changed = {"steps": _steps(sampling)}
        if self._has_penalties:
            changed |= _counts(sequences) | {"seen": _seen(sequences), "bitmask": _bitmask(sequences)}
        self._batch = replace(self._batch, **changed)
        return self._batch


def _steps(sampling: list[Chunk]) -> Array:
    """Return the positions of the tokens that are sampled, ``[R]`` int64."""
    return np.array([chunk.start + chunk.tokens for chunk in sampling], dtype=np.int64)


def tokens_of(plan: Plan, sampled: Sampled, is_sound: Items[bool]) -> list[SampledToken]:
    """Return the token of each chunk that samples.

    Args:
        plan: plan of the step.
        sampled: R rows, on the host.
        is_sound: whether a row's logits were numbers, for R rows; where not, its token is an error.
    """
    params = [chunk.sequence.request.sampling for chunk in plan if chunk.max_new_tokens]
    return [
        SampledToken(token, logprobs) if sound else SampledToken(-1, error=_UNSOUND)
        for token, logprobs, sound in zip(
            sampled.tokens.tolist(), _logprobs(params, sampled), is_sound, strict=True
        )
    ]


_UNSOUND = (
    "the model's logits were not finite numbers (overflow or damaged weights); "
    "this request was ended, others go on. Check the checkpoint's dtype and files"
)


def _logprobs(params: list[SamplingParams], sampled: Sampled) -> Iterator[TokenLogprobs | None]:
    """Yield each row's log-probabilities, with as many alternatives as its request asked for."""
    for row, param in enumerate(params):
        if param.logprobs is None or sampled.logprobs is None:
            yield None
            continue
        top: tuple[tuple[int, float], ...] = ()
        if sampled.top_ids is not None and sampled.top_logprobs is not None:
            ids, values = sampled.top_ids[row].tolist(), sampled.top_logprobs[row].tolist()
            top = tuple(zip(ids, values, strict=True))[: param.logprobs]
        yield TokenLogprobs(float(sampled.logprobs[row]), top)


def _starts(rows: Items[Sized]) -> Array:
    return np.array([0, *accumulate(len(row) for row in rows)], dtype=np.int32)
