"""Plan of a step, which the scheduler gives the runner, and the sampled tokens, which it gets back."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import NamedTuple

from wisp_plan.memory.cache import CacheSizes
from wisp_plan.memory.step import StepSizes
from wisp_runtime.batch import StepKind
from wisp_runtime.engine.scheduling.sequence import Sequence
from wisp_runtime.engine.transport.messages import PoolingKind, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a step and of a sequence.

    Attributes:
        cache: numbers of blocks and state slots.
        max_step_tokens: tokens a step may compute.
        max_concurrent: sequences that may run at a time.
        max_context: tokens a sequence may hold, prompt and answer together.
        vocab: number of token ids.
        eos: tokens that end an answer.
        reuses_prefixes: whether computed blocks enter the prefix cache.
        mixed_step_tokens: tokens a step may compute in which sequences decode, their own included: these wait
            for its prompts. None is ``max_step_tokens``.
        separate_prefill_decode: whether prefill and decode never share a step (:mod:`.deterministic`).
        max_waiting: sequences that may wait; more are refused.
        max_queue_wait_s: seconds after which a request that has not started is given up; None: never.
        target_per_token_s: time that a step with decodes should take at most; None: no target.
        target_first_token_s: time from arrival to the first token that is aimed at; None: no target.
        context_work: work of a token for each token of its context, in tokens without context: attention.
        poolings: kinds of pooling that the device computes.
    """

    cache: CacheSizes
    max_step_tokens: int
    max_concurrent: int
    max_context: int
    vocab: int
    eos: frozenset[int] = frozenset()
    reuses_prefixes: bool = True
    mixed_step_tokens: int | None = None
    separate_prefill_decode: bool = False
    max_waiting: int = sys.maxsize
    max_queue_wait_s: float | None = None
    target_per_token_s: float | None = None
    target_first_token_s: float | None = None
    context_work: float = 0.0
    poolings: frozenset[PoolingKind] = frozenset()

    @property
    def block_tokens(self) -> int:
        """Tokens a block of the cache holds."""
        return self.cache.block_tokens

    @property
    def max_running(self) -> int:
        """Sequences in one step: each that decodes needs a token of it."""
        return min(self.max_concurrent, self.max_step_tokens)

    @property
    def step(self) -> StepSizes:
        """Largest step, from which the size of every buffer follows."""
        return StepSizes(self.max_step_tokens, self.max_running, self.max_context, self.block_tokens)


class Chunk(NamedTuple):
    """Part of a sequence that a step computes.

    A chunk whose next token is sampled ends with the last token there is. That one may itself be awaited from
    the step before; then the chunk is that token alone.

    Attributes:
        sequence: the sequence.
        start: position of the chunk's first token.
        tokens: number of its tokens.
        kind: kind of work.
        logits: number of its last tokens whose logits are wanted.
        max_new_tokens: tokens that may come of it.
        restore_slot: snapshot that is copied to the sequence's recurrent state before the step; -1: none.
        snapshot_slot: slot that the state is copied to after the step; -1: none.
    """

    sequence: Sequence
    start: int
    tokens: int
    kind: StepKind
    logits: int
    max_new_tokens: int
    restore_slot: int = -1
    snapshot_slot: int = -1

    @property
    def samples(self) -> bool:
        """Whether a token is sampled after it."""
        return self.max_new_tokens > 0

    @classmethod
    def prefill(cls, sequence: Sequence, start: int, tokens: int, *, samples: bool) -> Chunk:
        """Return a chunk of a prefill; it samples if it ends with the sequence's last token.

        Tokens of a prompt whose log-probabilities are wanted have logits too.
        """
        logits = int(samples) + sequence.unscored(start, start + tokens)
        return cls(sequence, start, tokens, StepKind.PREFILL, logits, int(samples))

    @classmethod
    def decode(cls, sequence: Sequence, start: int, *, samples: bool = True) -> Chunk:
        """Return a chunk of one token after which the next is sampled, unless it is known already.

        The hidden state of a prompt that is pooled does not leave a kernel made for decodes.
        """
        kind = StepKind.DECODE if sequence.request.pooling is None else StepKind.PREFILL
        return cls(sequence, start, 1, kind, int(samples), int(samples))


class SampledToken(NamedTuple):
    """Token that was sampled after a chunk; if ``error`` is set, the token means nothing.

    Of a prompt that is pooled, ``pooled`` is what counts, and of a chunk that does not sample
    ``prompt_logprobs``: those of the prompt's next tokens.
    """

    token: int
    logprobs: TokenLogprobs | None = None
    error: str = ""
    pooled: bytes | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


Plan = tuple[Chunk, ...]
