"""Decide which sequences run in the next step, with how many tokens, and what came of it.

Pure: no arrays, no clock, no I/O, so every rule is one row of a table test. The rules:

1. A request's rank is its arrival number plus a head start per priority level. Lower ranks come
   first everywhere; because the head start is bounded, no priority is ever starved.
2. A step takes the running sequences that decode, then prefill chunks of the others, then admits
   from the queue, in rank order, within ``max_step_tokens``; within ``mixed_step_tokens`` if any decodes.
   Nobody overtakes in the queue.
3. A sequence is admitted when there are blocks for all its tokens and one to spare for each that
   runs. It grows block by block; when none is left, the one of the highest rank gives up its
   blocks and waits again (preemption by recompute). The lowest rank is never stopped, so every
   step gets something done.

A plan may be asked for while the one before runs (it was launched, its draws are not known). Then:

4. A sequence whose draw is awaited goes on with that token, unknown as it is, unless its length ends it. If
   it turns out to have ended otherwise, the chunk was for nothing and its draw is dropped.
5. A sequence whose sampling depends on the tokens before it (penalties count them) is planned as the others
   are. The caller samples a step only after it has committed the one before, so by then they are known.
6. Steps run in the order of their plans on one stream. So a block that is given back may be taken by the next
   plan though a launched step still uses it: what overwrites it runs later. A block enters the prefix
   cache when its tokens are known and the step that computes them is launched (and has drawn a sound token,
   if it draws): who finds it is planned, and runs, later. A chunk for nothing writes where the awaited token
   goes, after all that is known, hence never into a block of the prefix cache.
"""

from __future__ import annotations

import sys
from bisect import insort
from collections.abc import Iterable, Iterator
from operator import attrgetter

from wisp_runtime.batch import StepKind
from wisp_runtime.engine.cache.manager import CacheManager
from wisp_runtime.engine.scheduling.admission import max_length, refusal
from wisp_runtime.engine.scheduling.plan import Chunk, Draw, Limits, Plan
from wisp_runtime.engine.scheduling.sequence import Rank, Sequence, Status
from wisp_runtime.engine.transport.messages import Load, Submit, TokenEvent

HEAD_START = 1024  # arrivals that one level of priority is worth
_rank = attrgetter("rank")


class Scheduler:
    """The sequences of one engine; requests come and go between ``plan`` and ``commit``.

    Each plan that is not empty is launched and committed, in order; at most one is uncommitted when the next
    is asked for.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.cache = CacheManager(limits.cache, limits.max_step_tokens)
        self.waiting: list[Sequence] = []  # by rank, like running
        self.running: list[Sequence] = []
        self._sequences: dict[str, Sequence] = {}
        self._arrivals = 0
        self._refused_at: tuple[Rank, int, tuple[int, ...]] | None = None
        self._last: Plan = ()  # whose chunks are not counted as computed yet
        self._uncommitted = 0
        self._steps = self._prompt_tokens = self._cached_tokens = 0
        self._generated_tokens = self._preemptions = 0

    @property
    def is_idle(self) -> bool:
        """Whether no request is here."""
        return not self._sequences

    @property
    def load(self) -> Load:
        """How busy the engine is now, and what it has done since it started."""
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
            rank=(self._arrivals + request.priority * HEAD_START, self._arrivals),
            max_length=max_length(request, self.limits),
            eos=self.limits.eos,
        )
        self._sequences[sequence.id] = sequence
        insort(self.waiting, sequence, key=_rank)
        return None

    def abort(self, request_id: str) -> TokenEvent | None:
        """End a request and free its blocks now; None if no such request is here."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        self._end(sequence)
        return TokenEvent(request_id, None, "abort")

    def plan(self) -> Plan:
        """Choose the chunks of the next step: never none while a request is here and all tokens are known."""
        assert self._uncommitted <= 1, "two steps are under way; commit one before the next plan"
        self._count_last()
        chunks = self._chunks()
        while not chunks and self.running and not self._uncommitted:  # each lacks blocks that another has
            self._preempt(self.running[-1])
            chunks = self._chunks()
        self._last = tuple(chunks)
        self._uncommitted += bool(self._last)
        return self._last

    def commit(self, plan: Plan, draws: Iterable[Draw]) -> list[TokenEvent]:
        """Take in what the step of ``plan`` drew.

        Args:
            plan: what was run. Sequences that have ended since are passed over.
            draws: one per chunk that samples, in the plan's order.
        """
        if plan is self._last:
            self._count_last()
        self._steps += 1
        self._uncommitted -= 1
        sampling = [chunk.sequence for chunk in plan if chunk.samples]
        events = list[TokenEvent]()
        for sequence, draw in zip(sampling, draws, strict=True):
            if sequence.status is not Status.FINISHED:
                events.append(self._take_draw(sequence, draw))
            elif draw.error:  # nobody waits for it, but what it computed before may have been entered
                self.cache.clear()
        return events

    def _chunks(self) -> list[Chunk]:
        """Return the chunks of the next step."""
        chunks = self._decodes()
        most = self.limits.mixed_step_tokens if chunks else None
        budget = max(0, (most or self.limits.max_step_tokens) - len(chunks))
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
        """Return how many of the next ``tokens`` tokens of a sequence that prefills up to ``length`` can be
        computed.

        There may be none, for want of blocks: then nobody overtakes it.
        """
        start = sequence.computed_tokens
        tokens = self.cache.align(sequence.cache, start, tokens, length)
        if self.cache.extend(sequence.cache, start, start + tokens):
            return tokens
        return max(0, sequence.cache.covered_tokens - start)

    def _count_last(self) -> None:
        """Count the chunks of the last plan, launched by now, as computed; what they draw is awaited."""
        row = 0
        for chunk in self._last:
            sequence = chunk.sequence
            if sequence.status is not Status.FINISHED:
                sequence.computed_tokens += chunk.tokens
                if chunk.kind is StepKind.PREFILL or chunk.start < sequence.prompt_tokens:
                    self._prompt_tokens += chunk.tokens
                if chunk.samples:
                    sequence.awaited_row = row
                else:
                    self._publish(sequence)
            row += chunk.logits
        self._last = ()

    def _decodes(self) -> list[Chunk]:
        """Return the chunks of the running sequences that decode."""
        chunks, index = [], 0
        while index < len(self.running):  # preemption takes from its end
            sequence = self.running[index]
            start, length = sequence.computed_tokens, sequence.length
            if self._is_decode(sequence) and length < sequence.max_length and self._grow(sequence, length):
                chunks.append(self._with_copies(Chunk.decode(sequence, start)))
            index += 1
        return chunks

    def _prefills(self) -> Iterator[Sequence]:
        """Yield the sequences that prefill, the running ones first, admitting as long as asked."""
        for sequence in [one for one in self.running if not self._is_decode(one)]:
            self._cached_tokens += self._skip(sequence, self.cache.lookup(sequence.cache, sequence.tokens))
            yield sequence
        while self.waiting and len(self.running) < self.limits.max_running and self._admit(self.waiting[0]):
            yield self._start(self.waiting.pop(0))

    def _is_decode(self, sequence: Sequence) -> bool:
        """Return whether the next chunk of a sequence is a decode: all tokens but the last are computed."""
        return sequence.computed_tokens + 1 == sequence.length

    def _grow(self, sequence: Sequence, length: int) -> bool:
        """Give a sequence that decodes the block its last token needs; False if it has to sit out."""
        while not self.cache.extend(sequence.cache, sequence.computed_tokens, length):
            if self.running[-1] is sequence:
                return False
            self._preempt(self.running[-1])
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.status = Status.PREEMPTED
        insort(self.waiting, sequence, key=_rank)
        self._preemptions += 1

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence blocks for all its tokens, those of the prefix cache first, or none."""
        if sequence.awaited_row >= 0:  # preempted a moment ago
            return False
        attempt = (sequence.rank, len(self.running), self.cache.available)
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
        self._cached_tokens += self._skip(sequence, cache.cached_blocks * self.limits.block_tokens)
        return True

    def _start(self, sequence: Sequence) -> Sequence:
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=_rank)
        return sequence

    def _skip(self, sequence: Sequence, computed_tokens: int) -> int:
        """Move past tokens that were found in the prefix cache; return how many."""
        skipped = max(0, computed_tokens - sequence.computed_tokens)
        sequence.computed_tokens += skipped
        if not sequence.generated_tokens:
            sequence.cached_tokens += skipped
        return skipped

    def _publish(self, sequence: Sequence) -> None:
        """Let what is computed of a sequence, in full blocks, be found in the prefix cache."""
        self.cache.publish(sequence.cache, sequence.tokens, sequence.computed_tokens)

    def _reusable_tokens(self, sequence: Sequence) -> int:  # noqa: ARG002 (another scheduler's differ)
        """Return how many leading tokens of a sequence may be in the prefix cache."""
        return sys.maxsize

    def _take_draw(self, sequence: Sequence, draw: Draw) -> TokenEvent:
        if draw.error:
            self._end(sequence)
            self.cache.clear()  # whatever spoiled the logits may sit in its blocks
            return TokenEvent(sequence.id, None, "error", message=draw.error)
        self._publish(sequence)
        cached_tokens = 0 if sequence.generated_tokens else sequence.cached_tokens
        finish = sequence.append(draw.token)
        self._generated_tokens += 1
        if finish:
            self._end(sequence)
        return TokenEvent(sequence.id, draw.token, finish, cached_tokens, draw.logprobs)

    def _end(self, sequence: Sequence) -> None:
        (self.running if sequence.status is Status.RUNNING else self.waiting).remove(sequence)
        self._release(sequence)
        sequence.status = Status.FINISHED
        del self._sequences[sequence.id]

    def _release(self, sequence: Sequence) -> None:
        self.cache.release(sequence.cache)
        sequence.forget_computed()
