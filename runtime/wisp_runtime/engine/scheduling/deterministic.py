"""Batch-invariant scheduling (``--deterministic``): prefill and decode never share a step.

Pure, as :mod:`.scheduler`, whose rules hold but for these:

1. Prompts and generated tokens never share a step, so that each kind is always computed by the same kernels.
   Steps of the two kinds alternate while there are both.
2. A preempted sequence computes its prompt in prefill steps, then its generated tokens again, one a step, in
   decode steps, as they were generated. It samples nothing until it is where it was.
3. Only blocks that hold nothing but prompt enter the prefix cache or are taken from it: a token's keys and
   values differ in their last bits between the two kinds of step.
4. Of a model with recurrent state, a step ends a prompt, or stops at a multiple of the snapshots' stride: of
   the chunk in which kernels compute a recurrence, whose sums then do not depend on how a prompt is divided.
   Where a step has too few tokens or blocks left for that, the prompt waits for the next.
"""

from __future__ import annotations

from wisp_runtime.engine.scheduling.plan import Chunk, Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.scheduling.sequence import Sequence
from wisp_runtime.engine.scheduling.step_budget import PromptBudget


class DeterministicScheduler(Scheduler):
    """A scheduler whose steps hold prompts alone or generated tokens alone."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._was_prefill = False

    def _chunks(self) -> list[Chunk]:
        """Return the chunks of a prefill step or of a decode step, in turn."""
        self._displace()
        chunks = [] if self._was_prefill else self._prefill_step()
        self._was_prefill = bool(chunks)
        if not chunks:
            chunks = self._decode_chunks()
        if not chunks:
            chunks = self._prefill_step()
            self._was_prefill = bool(chunks)
        return chunks

    def _prefill_step(self) -> list[Chunk]:
        """Return chunks of prompts alone, admitting sequences while they fit."""
        decodes_wait = any(map(self._is_decode, self.running))
        return self._prompt_chunks(self._pace.prompt_budget(decodes_wait=decodes_wait))

    def _append_prefill(
        self, chunks: list[Chunk], sequence: Sequence, tokens: int, budget: PromptBudget
    ) -> bool:
        """Append a sequence's chunk, of at least the tokens that rule 4 requires, within the step's."""
        if not self.cache.has_states:
            return super()._append_prefill(chunks, sequence, tokens, budget)
        left = self.limits.max_step_tokens - sum(chunk.tokens for chunk in chunks)
        required = min(left, max(tokens, self._min_end(sequence) - sequence.computed_tokens))
        budget.tokens -= required - tokens
        return super()._append_prefill(chunks, sequence, required, budget)

    def _reach(self, sequence: Sequence, tokens: int, length: int) -> int:
        start, reached = sequence.computed_tokens, super()._reach(sequence, tokens, length)
        if not self.cache.has_states or start + reached == length:
            return reached
        stride = self.limits.cache.stride
        return max(0, (start + reached) // stride * stride - start)

    def _min_end(self, sequence: Sequence) -> int:
        """Return the position that a chunk of a sequence's prompt reaches at least."""
        if not self.cache.has_states:
            return super()._min_end(sequence)
        stride = self.limits.cache.stride
        return min((sequence.computed_tokens // stride + 1) * stride, sequence.prompt_tokens)

    def _prefill_chunk(self, sequence: Sequence, tokens: int) -> Chunk:
        start = sequence.computed_tokens
        return Chunk.prefill(sequence, start, tokens, samples=start + tokens == sequence.length)

    def _pending(self, sequence: Sequence) -> int:
        return max(0, sequence.prompt_tokens - sequence.computed_tokens)

    def _decode_chunks(self) -> list[Chunk]:
        """Return a token of each sequence past its prompt: those that sample, then those that catch up."""
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
    """Return the scheduler for ``limits``."""
    return DeterministicScheduler(limits) if limits.separate_prefill_decode else Scheduler(limits)
