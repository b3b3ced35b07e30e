"""Arguments of one engine step, from the runner down to the kernels.

A leaf: it names arrays, it makes none. They are NumPy arrays on the CPU backend, CuPy arrays on CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

Array = Any  # numpy.ndarray or cupy.ndarray


class StepKind(Enum):
    """Kind of work that a step does for a sequence: chosen by the scheduler, never inferred from a token
    count.

    Attributes:
        PREFILL: tokens of a prompt, or once more those of a preempted sequence.
        DECODE: one token, the last of a sequence.
        VERIFY: tokens that were proposed; logits are wanted of each.
        ENCODE: inputs that are no tokens (an image's patches); no logits are wanted.
    """

    PREFILL = auto()
    DECODE = auto()
    VERIFY = auto()
    ENCODE = auto()


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: N tokens of B sequences, packed without padding, sequence after sequence.

    Prefill chunks and single decode tokens mix freely.

    Attributes:
        tokens: ``[N]`` int32, token ids.
        positions: ``[N]`` int32, position of each token in its sequence.
        slots: ``[N]`` int64, place of each token's K and V: ``block * Tb + offset``.
        query_starts: ``[B + 1]`` int32, sequence b owns tokens ``query_starts[b]:query_starts[b + 1]``.
        context_lengths: ``[B]`` int32, tokens of each sequence in the cache after this step.
        block_tables: ``[B, W]`` int32, KV blocks of each sequence in order; unused entries are 0.
        logit_rows: ``[R]`` int64, the rows of N whose logits are wanted, ascending, none twice.
        query_starts_host: the same as ``query_starts``, as plain integers.
        context_lengths_host: the same as ``context_lengths``, as plain integers.
        kind: kind of every sequence's work, where all are computed as of that kind: DECODE is one token each;
            PREFILL (in deterministic mode) is as prompts are computed, a single token too. None is any
            mixture.
        state_slots: ``[B]`` int32, slot of each sequence's recurrent state, -1 for padding; None where no
            layer has one. A sequence whose first token is at position 0 begins with a state of zeros.
        other_groups: the same step with ``slots`` and ``block_tables`` of each paged group but the first.
        wants_states: whether the model's normed states of all N tokens are wanted too.
    """

    tokens: Array
    positions: Array
    slots: Array
    query_starts: Array
    context_lengths: Array
    block_tables: Array
    logit_rows: Array
    query_starts_host: tuple[int, ...]
    context_lengths_host: tuple[int, ...]
    kind: StepKind | None = None
    state_slots: Array | None = None
    other_groups: tuple[Batch, ...] = ()
    wants_states: bool = False

    def of_group(self, index: int) -> Batch:
        """Return the step with ``slots`` and ``block_tables`` of a paged group."""
        return self.other_groups[index - 1] if index else self


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of each of R rows of logits.

    Ragged lists (token counts for penalties, logit bias) are flat with ``[R + 1]`` starts.

    Attributes:
        temperature: ``[R]`` float32, 0 is greedy.
        top_k: ``[R]`` int32, 0 keeps all.
        top_p: ``[R]`` float32, 1 keeps all.
        min_p: ``[R]`` float32, 0 keeps all.
        seeds: ``[R]`` uint64, key of the random numbers.
        steps: ``[R]`` int64, position in the sequence of the sampled token: the counter of the random
            numbers, so that a request's tokens depend neither on the batch nor on preemption.
        repetition_penalty: ``[R]`` float32, 1 leaves logits as they are.
        presence_penalty, frequency_penalty: ``[R]`` float32.
        count_starts, count_ids, counts: ``[R + 1]``, ``[C]``, ``[C]`` int32, generated tokens and how often.
        bias_starts, bias_ids, biases: ``[R + 1]``, ``[C']`` int32, ``[C']`` float32.
        seen: ``[R, ceil(V / 32)]`` uint32, bit set = token of prompt or answer, which repetition penalties
            count; None where no row has one.
        bitmask: ``[R, ceil(V / 32)]`` uint32, bit set = token allowed; None allows all.
        logprobs: alternatives to report per row; -1 computes no log-probabilities at all.
    """

    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    seeds: Array
    steps: Array
    repetition_penalty: Array
    presence_penalty: Array
    frequency_penalty: Array
    count_starts: Array
    count_ids: Array
    counts: Array
    bias_starts: Array
    bias_ids: Array
    biases: Array
    seen: Array | None = None
    bitmask: Array | None = None
    logprobs: int = -1


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampled tokens, on the host.

    Attributes:
        tokens: ``[R]`` int32.
        logprobs: ``[R]`` float32 of these tokens, or None.
        top_ids: ``[R, K]`` int32, best first, or None.
        top_logprobs: ``[R, K]`` float32, or None.
    """

    tokens: Array
    logprobs: Array | None = None
    top_ids: Array | None = None
    top_logprobs: Array | None = None
