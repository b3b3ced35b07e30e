"""Running and waiting sequences of an engine, and the blocks of those that run: admission, growth,
preemption.

Pure. The rules are 1 and 3 of :mod:`.scheduler`, which decides what the running sequences compute.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort

from wisp_runtime.engine.cache.manager import CacheManager
from wisp_runtime.engine.constrained.constraint import Constraint
from wisp_runtime.engine.scheduling.plan import Chunk, Limits
from wisp_runtime.engine.scheduling.sequence import Sequence, Status
from wisp_runtime.engine.scheduling.step_budget import Prefill
from wisp_runtime.engine.scheduling.waiting_queue import WaitingQueue, by_priority_key
from wisp_runtime.engine.transport.messages import TokenEvent


class SequenceSet:
    """Sequences of one engine.

    Attributes:
        limits: bounds of a step and of a sequence.
        cache: blocks and state slots.
        waiting: sequences without blocks, by priority key.
        running: sequences with blocks, by priority key.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.cache = CacheManager(limits.cache, limits.max_step_tokens)
        self.waiting = WaitingQueue(limits.max_waiting, limits.max_queue_wait_s)
        self.running: list[Sequence] = []
        self._sequences: dict[str, Sequence] = {}
        self._cached_tokens = self._preemptions = 0
        self._now_s = 0.0
        self._extra_rows = 0  # rows of logits of the next plan, besides one for each running sequence

    @property
    def is_idle(self) -> bool:
        """Whether no request is here, but for those whose grammars are compiled."""
        return not (self.running or self.waiting)

    def constrain(self, request_id: str, constraint: Constraint | str) -> TokenEvent | None:
        """Set the rule of a request whose grammar is compiled; or end it, refused for the reason given."""
        sequence = self._sequences[request_id]
        if isinstance(constraint, str):
            self._end(sequence)
            return TokenEvent(request_id, None, "refused", message=constraint)
        sequence.constrain(constraint)
        self.waiting.compiled(sequence)
        return None

    def _is_decode(self, sequence: Sequence) -> bool:
        """Return whether the next chunk of a sequence is a decode: all tokens but the last are computed."""
        return sequence.computed_tokens + 1 == sequence.length

    def _pending(self, sequence: Sequence) -> int:
        """Return the tokens of a sequence that prefill chunks have to compute."""
        return sequence.pending_tokens

    def _min_end(self, sequence: Sequence) -> int:
        """Return the position that a chunk of a prompt reaches at least."""
        return sequence.computed_tokens + 1

    def _has_place(self) -> bool:
        return self._free_rows() > 0

    def _free_rows(self) -> int:
        """Return the rows of logits that the next step has left, with one for each running sequence."""
        return self.limits.max_running - len(self.running) - self._extra_rows

    def _scorable(self, sequence: Sequence, tokens: int) -> int:
        """Shorten a chunk of a prompt whose log-probabilities are wanted to the rows of logits that are left.

        Half of them are left to sequences that wait.
        """
        start = sequence.computed_tokens
        if not sequence.unscored(start, start + tokens):
            return tokens
        free = self._free_rows() // 2 if self.waiting else self._free_rows()
        return min(tokens, max(0, sequence.scored_tokens - start) + 1 + free)

    def _displace(self) -> None:
        """Admit sequences that outrank running ones, which give up their places; rule 1."""
        while self.waiting and self.running and self.waiting[0].priority_key < self.running[-1].priority_key:
            first = self.waiting[0]
            if not self._is_due(first):
                return
            if not (self._has_place() and self._admit(first)):
                if not self._fits_instead(first):
                    return
                while not (self._has_place() and self._admit(first)):
                    self._preempt(self.running[-1])
            self._start(first)

    def _is_due(self, sequence: Sequence) -> bool:
        """Return whether the prompts ahead of ``sequence`` leave it a share of the next step."""
        if sequence.pending_sample_row >= 0:  # preempted a moment ago
            return False
        ahead = [
            Prefill(running.computed_tokens, self._pending(running))
            for running in self.running[: self._rank(sequence)]
            if not self._is_decode(running)
        ]
        step_tokens = self.limits.mixed_step_tokens or self.limits.max_step_tokens
        return sum(prefill.pending for prefill in ahead) < step_tokens or Prefill(
            0, sequence.length
        ).is_short_beside(ahead[0])

    def _rank(self, sequence: Sequence) -> int:
        """Return the number of running sequences that rank before ``sequence``."""
        return bisect_left(self.running, sequence.priority_key, key=by_priority_key)

    def _fits_instead(self, sequence: Sequence) -> bool:
        """Return whether ``sequence`` has enough blocks if all that rank behind it give up theirs."""
        rank = self._rank(sequence)
        behind = [running.cache for running in self.running[rank:]]
        salt = sequence.request.cache_salt
        return not rank or self.cache.fits(sequence.tokens, self._shared_tokens(sequence), rank, salt, behind)

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence blocks for all its tokens, those of the prefix cache first, or none."""
        if sequence.pending_sample_row >= 0:  # preempted a moment ago
            return False
        attempt = len(self.running), self.cache.available, self.cache.tree.insertions
        if self.running and attempt == sequence.refused_at:
            return False
        cache = self.cache.admit(
            sequence.tokens,
            reusable_tokens=self._shared_tokens(sequence),
            spare_blocks=len(self.running) or None,
            salt=sequence.request.cache_salt,
        )
        if cache is None:
            sequence.refused_at = attempt
            return False
        sequence.cache = cache
        self._skip(sequence, cache.cached_blocks * self.limits.block_tokens)
        return True

    def _start(self, sequence: Sequence) -> Sequence:
        self.waiting.remove(sequence)
        if sequence.status is not Status.PREEMPTED:
            sequence.queued_s = self._now_s - sequence.arrived_s
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=by_priority_key)
        return sequence

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.status = Status.PREEMPTED
        self.waiting.put_back(sequence)
        self._preemptions += 1

    def _grow(self, sequence: Sequence, length: int) -> bool:
        """Give a sequence the block that its next token needs; False if it has to sit out."""
        if length <= sequence.cache.covered_tokens:
            return True
        while not self.cache.extend(sequence.cache, sequence.computed_tokens, length):
            if self.running[-1] is sequence:
                return False
            self._preempt(self.running[-1])
        return True

    def _reach(self, sequence: Sequence, tokens: int, length: int) -> int:
        """Shorten a chunk of the next ``tokens`` tokens, of a prefill up to ``length``, to its blocks.

        0 for lack of blocks: then no other sequence overtakes this one.
        """
        start = sequence.computed_tokens
        tokens = self.cache.align(sequence.cache, start, tokens, length)
        if self.cache.extend(sequence.cache, start, start + tokens):
            return tokens
        return max(0, sequence.cache.covered_tokens - start)

    def _reuse(self, sequence: Sequence) -> None:
        """Move past the tokens that are in the prefix cache by now."""
        self._skip(sequence, self.cache.lookup(sequence.cache, sequence.tokens))

    def _skip(self, sequence: Sequence, computed_tokens: int) -> None:
        """Move past tokens of the prefix cache."""
        skipped = max(0, computed_tokens - sequence.computed_tokens)
        sequence.computed_tokens += skipped
        self._cached_tokens += skipped
        if not sequence.generated_tokens:
            sequence.cached_tokens += skipped

    def _shared_tokens(self, sequence: Sequence) -> int:
        """Return the number of leading tokens of a sequence that take part in the prefix cache."""
        takes_part = self.limits.reuses_prefixes and sequence.reads_prefixes
        return self._reusable_tokens(sequence) if takes_part else 0

    def _reusable_tokens(self, sequence: Sequence) -> int:  # noqa: ARG002 (deterministic mode's differ)
        """Return the number of leading tokens of a sequence that may be in the prefix cache."""
        return sys.maxsize

    def _with_copies(self, chunk: Chunk) -> Chunk:
        """Return ``chunk`` with the copies of recurrent state before and after it."""
        if not self.cache.has_states:
            return chunk
        cache, end = chunk.sequence.cache, chunk.start + chunk.tokens
        restore = self.cache.take_restore(cache)
        return chunk._replace(restore_slot=restore, snapshot_slot=self.cache.take_snapshot(cache, end))

    def _end(self, sequence: Sequence) -> None:
        (self.running if sequence.status is Status.RUNNING else self.waiting).remove(sequence)
        self._release(sequence)
        sequence.status = Status.FINISHED
        del self._sequences[sequence.id]

    def _release(self, sequence: Sequence) -> None:
        self.cache.release(sequence.cache)
        sequence.forget_computed()
