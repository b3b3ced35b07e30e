"""Sampling parameters of a step, and its sampled tokens. The sampling itself is in ``ops``."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from collections.abc import Sized
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from wisp_runtime.batch import Array, Sampled, SamplingBatch
from wisp_runtime.engine.constrained.bits import ALL, set_bits, words_of
from wisp_runtime.engine.constrained.masks import TokenMask, complete, rows_of
from wisp_runtime.engine.scheduling.plan import Chunk, Plan, SampledToken
from wisp_runtime.engine.scheduling.sequence import Sequence, Status, TokenCounts
from wisp_runtime.engine.transport.messages import SamplingParams, TokenLogprobs

_NO_COUNTS = TokenCounts()
_NO_BIASES = array("i"), array("f")
_SEED_MASK = (1 << 64) - 1


class Row(NamedTuple):
    """A row of logits.

    Attributes:
        sequence: its sequence.
        position: position of the token that follows.
        forced: the prompt's own next token, whose log-probability is wanted; -1: the token is sampled.
    """

    sequence: Sequence
    position: int
    forced: int = -1

    @property
    def sampling(self) -> SamplingParams:
        """Parameters of the row."""
        sampling = self.sequence.request.sampling
        if self.forced < 0:
            return sampling
        return SamplingParams(temperature=0.0, logprobs=sampling.prompt_logprobs)


def logit_rows(plan: Plan) -> list[Row]:
    """Return the rows of logits of ``plan``, in order."""
    rows = list[Row]()
    for chunk in plan:
        end, tokens = chunk.start + chunk.tokens, chunk.sequence.tokens
        forced_end = end + 1 - chunk.samples
        for position in range(end + 1 - chunk.logits, forced_end):
            rows.append(Row(chunk.sequence, position, tokens[position]))
        if chunk.samples:
            rows.append(Row(chunk.sequence, end))
    return rows


def sampling_batch(plan: Plan) -> SamplingBatch:
    """Collect the sampling parameters of the rows of logits of ``plan``, in order.

    A token of the prompt is the only one that its row's bitmask allows, so that the sampler reports its
    log-probability, and the best alternatives, as it does those of any token that it chooses.
    """
    rows = logit_rows(plan)
    params = [row.sampling for row in rows]
    biases = [row.sequence.biases if row.forced < 0 else _NO_BIASES for row in rows]
    sequences = [row.sequence if row.forced < 0 else None for row in rows]
    return SamplingBatch(
        temperature=np.array([param.temperature for param in params], dtype=np.float32),
        top_k=np.array([param.top_k for param in params], dtype=np.int32),
        top_p=np.array([param.top_p for param in params], dtype=np.float32),
        min_p=np.array([param.min_p for param in params], dtype=np.float32),
        seeds=np.array([param.seed & _SEED_MASK for param in params], dtype=np.uint64),
        steps=np.array([row.position for row in rows], dtype=np.int64),
        repetition_penalty=np.array([param.repetition_penalty for param in params], dtype=np.float32),
        presence_penalty=np.array([param.presence_penalty for param in params], dtype=np.float32),
        frequency_penalty=np.array([param.frequency_penalty for param in params], dtype=np.float32),
        **_counts(sequences),
        seen=_seen(sequences),
        bitmask=_forcing(rows, _bitmask(sequences)),
        bias_starts=_starts([ids for ids, _ in biases]),
        bias_ids=_concatenated([ids for ids, _ in biases], np.int32),
        biases=_concatenated([values for _, values in biases], np.float32),
        logprobs=max((-1 if param.logprobs is None else param.logprobs for param in params), default=-1),
    )


def _forcing(rows: list[Row], bitmask: Array | None) -> Array | None:
    """Return ``bitmask`` with one bit in each row whose token is the prompt's."""
    forced = [(index, row.forced) for index, row in enumerate(rows) if row.forced >= 0]
    if not forced:
        return bitmask
    if bitmask is None:
        bitmask = np.full((len(rows), words_of(rows[0].sequence.vocab)), ALL, np.uint32)
    for index, token in forced:
        bitmask[index] = 0
        set_bits(bitmask[index], np.array([token]))
    return bitmask


def _counts(sequences: Items[Sequence | None]) -> dict[str, Array]:
    """Return the tokens that penalties count and their counts, as fields of a sampling batch."""
    counting = [
        _NO_COUNTS if sequence is None or sequence.counts is None else sequence.counts
        for sequence in sequences
    ]
    return {
        "count_starts": _starts([row.ids for row in counting]),
        "count_ids": _concatenated([row.ids for row in counting], np.int32),
        "counts": _concatenated([row.counts for row in counting], np.int32),
    }


def _seen(sequences: Items[Sequence | None]) -> Array | None:
    """Return the tokens that repetition penalties count, ``[R, ceil(V / 32)]``; None where no row has one."""
    rows = [
        sequence.seen().words if sequence is not None and sequence.has_repetition else None
        for sequence in sequences
    ]
    first = next((row for row in rows if row is not None), None)
    if first is None:
        return None
    none = np.zeros_like(first)
    return np.stack([none if row is None else row for row in rows])


def _bitmask(sequences: Items[Sequence | None]) -> Array | None:
    """Return the tokens that rules allow, ``[R, ceil(V / 32)]``; None where no row has a rule."""
    return rows_of([None if sequence is None else _mask_of(sequence) for sequence in sequences])


def _mask_of(sequence: Sequence) -> TokenMask | None:
    """Return a sequence's mask; if it ended since its plan was made, its token is dropped and needs none."""
    return None if sequence.status is Status.FINISHED else sequence.mask


def complete_masks(plan: Plan) -> None:
    """Compute what is missing of the masks that sampling ``plan`` needs; its tokens before must be known."""
    masks = [_mask_of(chunk.sequence) for chunk in plan if chunk.samples]
    complete([mask for mask in masks if mask is not None])


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
        if sum([chunk.logits for chunk in plan]) > len(sampling):
            self._batch = None
            return sampling_batch(plan)
        sequences = [chunk.sequence for chunk in sampling]
        if self._batch is None or sequences != self._sequences:
            self._batch, self._sequences = sampling_batch(plan), sequences
            self._has_penalties = any(each.counts_tokens or each.mask is not None for each in sequences)
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
    """Return the token of each chunk with logits.

    Args:
        plan: plan of the step.
        sampled: R rows, on the host.
        is_sound: whether a row's logits were numbers, for R rows; where not, its chunk's token is an error.
    """
    tokens, results, row = sampled.tokens.tolist(), list[SampledToken](), 0
    reporting = [chunk for chunk in plan if chunk.logits]
    if sampled.logprobs is None and len(reporting) == len(tokens):
        return [
            SampledToken(token) if sound else SampledToken(-1, error=_UNSOUND)
            for token, sound in zip(tokens, is_sound, strict=True)
        ]
    for chunk in reporting:
        sampling, last = chunk.sequence.request.sampling, row + chunk.logits - 1
        if not all(is_sound[row : last + 1]):
            results.append(SampledToken(-1, error=_UNSOUND))
        elif chunk.samples:
            logprobs = _logprobs(sampling.logprobs, sampled, last)
            scores = _scores(chunk, sampled, row) if chunk.logits > 1 else ()
            results.append(SampledToken(tokens[last], logprobs, "", None, scores))
        else:
            results.append(SampledToken(-1, prompt_logprobs=_scores(chunk, sampled, row)))
        row = last + 1
    return results


def _scores(chunk: Chunk, sampled: Sampled, row: int) -> tuple[TokenLogprobs, ...]:
    """Return the log-probabilities of the prompt's tokens, of a chunk's rows from ``row`` on."""
    alternatives = chunk.sequence.request.sampling.prompt_logprobs
    rows = range(row, row + chunk.logits - chunk.samples)
    scores = [_logprobs(alternatives, sampled, each) for each in rows]
    return tuple([score for score in scores if score is not None])


UNSOUND_LOGITS = "the model's logits were not finite numbers (overflow or damaged weights)"
_UNSOUND = f"{UNSOUND_LOGITS}; this request was ended, others go on. Check the checkpoint's dtype and files"


def _logprobs(alternatives: int | None, sampled: Sampled, row: int) -> TokenLogprobs | None:
    """Return a row's log-probabilities, with as many alternatives as were asked for."""
    if alternatives is None or sampled.logprobs is None:
        return None
    top: tuple[tuple[int, float], ...] = ()
    if sampled.top_ids is not None and sampled.top_logprobs is not None:
        ids, values = sampled.top_ids[row, :alternatives], sampled.top_logprobs[row, :alternatives]
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(float(sampled.logprobs[row]), top)


def _starts(rows: Items[Sized]) -> Array:
    return np.array([0, *accumulate(len(row) for row in rows)], dtype=np.int32)
