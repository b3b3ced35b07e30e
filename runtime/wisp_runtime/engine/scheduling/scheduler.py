"""Decide which sequences run in the next step, with how many tokens, and take in what they sampled.

Pure: no arrays, no clock, no I/O, so every rule is one row of a table test. The rules:

1. A request's priority key is its arrival number plus a boost per priority level. Lower keys come first
   everywhere; because the boost is bounded, no priority is ever starved.
2. A step takes the running sequences that decode, then prefill chunks of the others, then admits from the
   queue, by key, within ``max_step_tokens``; within ``mixed_step_tokens`` if any decodes. Nothing overtakes
   in the queue.
3. A sequence is admitted when there are blocks for all its tokens and one to spare for each that runs. It
   grows block by block; when none is left, the one with the highest key gives up its blocks and waits again
   (preemption by recompute). The lowest key is never stopped, so every step gets something done.

A plan may be made while the step before runs: its tokens are awaited. Then:

4. A sequence that awaits its token goes on with it, unknown as it is, unless its length ends the sequence. If
   the sequence turns out to have ended otherwise, the chunk was surplus and its token is dropped.
5. A sequence whose sampling depends on the tokens before it (penalties count them) is planned as the others
   are. A step is sampled only after the one before is committed, so by then they are known.
6. Steps run in the order of their plans on one stream. So a block that is given back may be taken by the next
   plan though a launched step still uses it: what overwrites it runs later. A block enters the prefix cache
   when its tokens are known and the step that computes them is launched (and has sampled a sound token, if it
   samples): a sequence that finds it is planned, and runs, later. A surplus chunk writes where the awaited
   token goes, after all tokens that are known, hence never into a block of the prefix cache.
"""

from __future__ import annotations

import sys
from bisect import insort
from collections.abc import Iterable, Iterator
from operator import attrgetter

from wisp_runtime.batch import StepKind
from wisp_runtime.engine.cache.manager import CacheManager
from wisp_runtime.engine.scheduling.admission import max_length, refusal
from wisp_runtime.engine.scheduling.plan import Chunk, Limits, Plan, SampledToken
from wisp_runtime.engine.scheduling.sequence import PriorityKey, Sequence, Status
from wisp_runtime.engine.transport.messages import Load, Submit, TokenEvent

PRIORITY_BOOST = 1024  # in arrivals, for each level of priority
_priority_key = attrgetter("priority_key")


class Scheduler:
    """Sequences of one engine; requests come and go between ``plan`` and ``commit``.

    Each plan that is not empty is launched and committed, in order; at most one is uncommitted when the next
    is asked for.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.cache = CacheManager(limits.cache, limits.max_step_tokens)
        self.waiting: list[Sequence] = []  # by priority key, like running
        self.running: list[Sequence] = []
        self._sequences: dict[str, Sequence] = {}
        self._arrivals = 0
        self._refused_at: tuple[PriorityKey, int, tuple[tuple[int, ...], int]] | None = None
        self._last: Plan = ()  # not counted as computed yet
        self._uncommitted = 0
        self._steps = self._prompt_tokens = self._cached_tokens = 0
        self._generated_tokens = self._preemptions = 0

    @property
    def is_idle(self) -> bool:
        """Whether no request is here."""
        return not self._sequences

    @property
    def load(self) -> Load:
        """Counts of requests, blocks and tokens: now, and since the engine started."""
        return Load(
            waiting=len(self.waiting),
            running=len(self.running),
            kv_blocks_used=self.cache.used_blocks,
            kv_blocks_total=self.cache.total_blocks,
            steps=self._steps,
            prompt_tokens_total=self._prompt_tokens,
            cached_tokens_total=self._cached_tokens,
            generated_tokens_total=self._generated_tokens,
            preemptions_total=self._preemptions,
        )

    def submit(self, request: Submit) -> TokenEvent | None:
        """Queue a request; if it can never run, return the event that says why."""
        assert request.request_id not in self._sequences, f"request {request.request_id} is already here"
        if why := refusal(request, self.limits):
            return TokenEvent(request.request_id, None, "error", message=why)
        self._arrivals += 1
        sequence = Sequence(
            request,
            priority_key=(self._arrivals + request.priority * PRIORITY_BOOST, self._arrivals),
            max_length=max_length(request, self.limits),
            eos=self.limits.eos,
        )
        self._sequences[sequence.id] = sequence
        insort(self.waiting, sequence, key=_priority_key)
        return None

    def abort(self, request_id: str) -> TokenEvent | None:
        """End a request and free its blocks now; None if no such request is here."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        self._end(sequence)
        return TokenEvent(request_id, None, "abort")

    def plan(self) -> Plan:
        """Choose the chunks of the next step: never none while there is a request and all tokens are
        known."""
        assert self._uncommitted <= 1, "two steps are under way; commit one before the next plan"
        self._count_last()
        if self.running and not self._is_decode(first := self.running[0]):
            self._reuse(first)
            self._grow(first, first.computed_tokens + 1)  # its tables may be short, if a group has a window
        self._last = tuple(self._chunks())
        self._uncommitted += bool(self._last)
        return self._last

    def commit(self, plan: Plan, tokens: Iterable[SampledToken]) -> list[TokenEvent]:
        """Append the tokens that the step of ``plan`` sampled.

        Args:
            plan: plan of the step. Sequences that have ended since are passed over.
            tokens: one per chunk that samples, in the plan's order.
        """
        if plan is self._last:
            self._count_last()
        self._steps += 1
        self._uncommitted -= 1
        sampling = [chunk.sequence for chunk in plan if chunk.max_new_tokens]
        events = list[TokenEvent]()
        for sequence, token in zip(sampling, tokens, strict=True):
            if sequence.status is not Status.FINISHED:
                events.append(self._append_sampled(sequence, token))
            elif token.error:  # the token is dropped, but blocks computed before may have been published
                self.cache.clear()
        return events

    def _chunks(self) -> list[Chunk]:
        """Return the chunks of the next step."""
        chunks = self._decodes()
        mixed = self.limits.mixed_step_tokens if chunks else None
        budget = max(0, (mixed or self.limits.max_step_tokens) - len(chunks))
        prefills = self._prefills()
        while budget and (sequence := next(prefills, None)):
            start, pending = sequence.computed_tokens, sequence.pending_tokens
            tokens = self._reach(sequence, min(pending, budget), sequence.length)
            if not tokens:
                break
            if self._is_decode(sequence):  # all but its last token was cached
                chunk = Chunk.decode(sequence, start)
            else:
                chunk = Chunk.prefill(sequence, start, tokens, samples=tokens == pending)
            chunks.append(self._with_copies(chunk))
            budget -= tokens
        return chunks

    def _with_copies(self, chunk: Chunk) -> Chunk:
        """Return ``chunk`` with the copies of recurrent state before and after it."""
        if not self.cache.has_states:
            return chunk
        cache, end = chunk.sequence.cache, chunk.start + chunk.tokens
        restore = self.cache.take_restore(cache)
        return chunk._replace(restore_slot=restore, snapshot_slot=self.cache.take_snapshot(cache, end))

    def _reach(self, sequence: Sequence, tokens: int, length: int) -> int:
        """Shorten a chunk of the next ``tokens`` tokens, of a prefill up to ``length``, to its blocks.

        0 for lack of blocks: then no other sequence overtakes this one.
        """
        start = sequence.computed_tokens
        tokens = self.cache.align(sequence.cache, start, tokens, length)
        if self.cache.extend(sequence.cache, start, start + tokens):
            return tokens
        return max(0, sequence.cache.covered_tokens - start)

    def _count_last(self) -> None:
        """Count the chunks of the last plan, launched by now, as computed; their tokens are awaited."""
        row = 0
        for chunk in self._last:
            sequence = chunk.sequence
            if sequence.status is not Status.FINISHED:
                sequence.computed_tokens += chunk.tokens
                if chunk.kind is StepKind.PREFILL or chunk.start < sequence.prompt_tokens:
                    self._prompt_tokens += chunk.tokens
                if chunk.max_new_tokens:
                    sequence.pending_sample_row = row
                else:
                    self.cache.publish(sequence.cache, sequence.tokens, sequence.computed_tokens)
            row += chunk.logits
        self._last = ()

    def _decodes(self) -> list[Chunk]:
        """Return the chunks of the running sequences that decode."""
        chunks, index, running = list[Chunk](), 0, self.running
        while index < len(running):  # preemption takes from its end
            sequence = running[index]
            start, length = sequence.computed_tokens, sequence.length
            if start + 1 == length < sequence.max_length and self._grow(sequence, length):
                chunks.append(self._with_copies(Chunk(sequence, start, 1, StepKind.DECODE, 1, 1)))
            index += 1
        return chunks

    def _prefills(self) -> Iterator[Sequence]:
        """Yield the sequences that prefill, the running ones first, admitting as long as asked."""
        for sequence in [running for running in self.running if not self._is_decode(running)]:
            self._reuse(sequence)
            yield sequence
        while self.waiting and len(self.running) < self.limits.max_running and self._admit(self.waiting[0]):
            yield self._start(self.waiting.pop(0))

    def _is_decode(self, sequence: Sequence) -> bool:
        """Return whether the next chunk of a sequence is a decode: all tokens but the last are computed."""
        return sequence.computed_tokens + 1 == sequence.length

    def _grow(self, sequence: Sequence, length: int) -> bool:
        """Give a sequence the block that its next token needs; False if it has to sit out."""
        if length <= sequence.cache.covered_tokens:
            return True
        while not self.cache.extend(sequence.cache, sequence.computed_tokens, length):
            if self.running[-1] is sequence:
                return False
            self._preempt(self.running[-1])
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.status = Status.PREEMPTED
        insort(self.waiting, sequence, key=_priority_key)
        self._preemptions += 1

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence blocks for all its tokens, those of the prefix cache first, or none."""
        if sequence.pending_sample_row >= 0:  # preempted a moment ago
            return False
        blocks = self.cache.available, self.cache.tree.insertions
        attempt = (sequence.priority_key, len(self.running), blocks)
        if self.running and attempt == self._refused_at:
            return False
        takes_part = self.limits.reuses_prefixes and sequence.request.use_prefix_cache
        cache = self.cache.admit(
            sequence.tokens,
            prompt_tokens=sequence.prompt_tokens,
            reusable_tokens=self._reusable_tokens(sequence) if takes_part else 0,
            spare_blocks=len(self.running) or None,
        )
        if cache is None:
            self._refused_at = attempt
            return False
        sequence.cache = cache
        self._skip(sequence, cache.cached_blocks * self.limits.block_tokens)
        return True

    def _start(self, sequence: Sequence) -> Sequence:
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=_priority_key)
        return sequence

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

    def _reusable_tokens(self, sequence: Sequence) -> int:  # noqa: ARG002 (deterministic mode's differ)
        """Return the number of leading tokens of a sequence that may be in the prefix cache."""
        return sys.maxsize

    def _append_sampled(self, sequence: Sequence, sampled: SampledToken) -> TokenEvent:
        if sampled.error:
            self._end(sequence)
            self.cache.clear()  # whatever spoiled the logits may sit in its blocks
            return TokenEvent(sequence.id, None, "error", message=sampled.error)
        self.cache.publish(sequence.cache, sequence.tokens, sequence.computed_tokens)
        cached_tokens = 0 if sequence.generated_tokens else sequence.cached_tokens
        finish = sequence.append(sampled.token)
        self._generated_tokens += 1
        if finish:
            self._end(sequence)
        return TokenEvent(sequence.id, sampled.token, finish, cached_tokens, sampled.logprobs)

    def _end(self, sequence: Sequence) -> None:
        (self.running if sequence.status is Status.RUNNING else self.waiting).remove(sequence)
        self._release(sequence)
        sequence.status = Status.FINISHED
        del self._sequences[sequence.id]

    def _release(self, sequence: Sequence) -> None:
        self.cache.release(sequence.cache)
        sequence.forget_computed()
