"""Schedule so that a request's numbers never depend on its company: deterministic mode.

Pure, as :mod:`.scheduler`, whose rules hold but for these:

1. Prompts and generated tokens never share a step, so that each kind is always computed by the same kernels.
   Steps of the two kinds take turns while there are both.
2. A preempted sequence computes its prompt as prompts are computed, and then feeds its generated tokens again
   one a step, as they were generated: nothing is drawn until it is where it was.
3. Only blocks that hold nothing but prompt enter the prefix cache or are taken from it: a token's keys and
   values differ in their last bits between the two kinds of step.
"""

from __future__ import annotations

from wisp_runtime.engine.scheduling.plan import Chunk, Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.scheduling.sequence import Sequence


class ApartScheduler(Scheduler):
    """A scheduler whose steps are of prompts alone or of generated tokens alone."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._was_prompts = False

    def _chunks(self) -> list[Chunk]:
        """Return the chunks of a step of prompts, or of one of generated tokens, in turn."""
        chunks = [] if self._was_prompts else self._prompts()
        self._was_prompts = bool(chunks)
        if not chunks:
            chunks = self._generated()
        if not chunks:
            chunks = self._prompts()
            self._was_prompts = bool(chunks)
        return chunks

    def _prompts(self) -> list[Chunk]:
        """Return chunks of prompts alone, admitting as long as there is room."""
        decodes = any(map(self._is_decode, self.running))
        most = self.limits.mixed_step_tokens if decodes else None
        budget, chunks = most or self.limits.max_step_tokens, list[Chunk]()
        prefills = self._prefills()
        while budget and (sequence := next(prefills, None)):
            start = sequence.computed_tokens
            wanted = min(sequence.prompt_tokens - start, budget)
            if wanted <= 0:  # all of its prompt was cached
                continue
            tokens = self._reach(sequence, wanted, sequence.prompt_tokens)
            if not tokens:
                break
            is_last = start + tokens == sequence.length
            chunks.append(self._with_copies(Chunk.prefill(sequence, start, tokens, samples=is_last)))
            budget -= tokens
        return chunks

    def _generated(self) -> list[Chunk]:
        """Return a token of each sequence past its prompt: those that draw, then those that catch up."""
        decodes, again, index = list[Chunk](), list[Chunk](), 0
        while index < len(self.running):  # preemption takes from its end
            sequence = self.running[index]
            start, length = sequence.computed_tokens, sequence.length
            if self._is_decode(sequence):
                if start + 1 < length:
                    if self._grow(sequence, start + 1):
                        again.append(self._with_copies(Chunk.decode(sequence, start, samples=False)))
                elif start + 1 == length < sequence.max_length and self._grow(sequence, length):
                    decodes.append(self._with_copies(Chunk.decode(sequence, start)))
            index += 1
        return decodes + again

    def _is_decode(self, sequence: Sequence) -> bool:
        return sequence.computed_tokens >= sequence.prompt_tokens

    def _reusable_tokens(self, sequence: Sequence) -> int:
        """Return the prompt's tokens."""
        return sequence.prompt_tokens


def make_scheduler(limits: Limits) -> Scheduler:
    """Return the scheduler that ``limits`` ask for."""
    return ApartScheduler(limits) if limits.keeps_apart else Scheduler(limits)
