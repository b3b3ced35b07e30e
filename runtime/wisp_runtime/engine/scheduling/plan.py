"""What passes between the scheduler and the runner: a plan of chunks one way, the drawn tokens back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wisp_runtime.engine.scheduling.sequence import Sequence
from wisp_runtime.engine.transport.messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a step and a sequence.

    Attributes:
        blocks: KV blocks there are.
        block_tokens: tokens a block holds.
        max_step_tokens: tokens a step may compute.
        max_concurrent: sequences that may run at a time.
        max_context: tokens a sequence may hold, prompt and answer together.
        vocab: token ids are below it.
        eos: tokens that end an answer.
        reuses_prefixes: whether computed blocks are remembered.
        mixed_step_tokens: tokens a step may compute in which sequences decode, their own included: they wait
            for its prompts. None is ``max_step_tokens``.
        keeps_apart: deterministic mode: a step is of prompts or of generated tokens (:mod:`.apart`).
    """

    blocks: int
    block_tokens: int
    max_step_tokens: int
    max_concurrent: int
    max_context: int
    vocab: int
    eos: frozenset[int] = frozenset()
    reuses_prefixes: bool = True
    mixed_step_tokens: int | None = None
    keeps_apart: bool = False

    @property
    def max_running(self) -> int:
        """Sequences in one step: each that decodes needs a token of it."""
        return min(self.max_concurrent, self.max_step_tokens)


class Chunk(NamedTuple):
    """``tokens`` tokens of a sequence from position ``start``; a decode is a chunk of one.

    ``samples`` says that it ends with the last token there is, so that the next one is drawn. That last
    token may itself still be awaited from the step before; then the chunk is that token alone.
    """

    sequence: Sequence
    start: int
    tokens: int
    samples: bool


class Draw(NamedTuple):
    """What was drawn for a chunk that samples; if ``error`` is set, the token means nothing."""

    token: int
    logprobs: TokenLogprobs | None = None
    error: str = ""


Plan = tuple[Chunk, ...]
