"""Decide which sequences run in the next step, with how many tokens, and append the tokens that it samples.

Pure: no arrays, no clock, no I/O, so every rule is one row of a table test. The rules:

1. Lower priority keys come first everywhere (:mod:`.waiting_queue`): arrival, priority, and rank of a choice.
   A sequence that waits preempts a running one with a higher key, if that frees enough blocks and the prompts
   ahead of it leave it some of the step. The preempted one gives up its blocks and waits again; it is
   recomputed, from the blocks that are left of it in the prefix cache.
2. A step takes the running sequences that decode, then prefill chunks of the others, then admits from the
   queue, by key, within the budget of :mod:`.pacing`. Short prompts beside a long one get a share of that
   first (:func:`.step_budget.share_out`), and are admitted before a long one that waits, up to
   ``PRIORITY_BOOST`` times and while a place is left for it; they then rank directly behind it.
3. A sequence is admitted when there are blocks for all its tokens and one to spare for each that runs. It
   grows block by block; when none is left, the one with the highest key gives up its blocks. The lowest key
   is never preempted, so every step makes progress.

A plan may be made while the step before runs, whose tokens are then pending:

4. A sequence whose token is pending is planned with a placeholder for it, unless its length ends the
   sequence. If it has ended by then (a stop token, an abort), the chunk was surplus and its token is dropped.
5. A sequence whose sampling depends on the tokens before it (penalties count them, grammars parse them) is
   planned as the others are. A step is sampled only after the one before is committed: by then they are
   known.
6. Steps run in the order of their plans on one stream. So the next plan may take a freed block that a
   launched step still uses: the step that overwrites it runs later. A block enters the prefix cache when
   its tokens are known and the step that computes them is launched (and has sampled a valid token, if it
   samples): a sequence that reuses the block is planned, and runs, later. A surplus chunk writes at the
   position of the pending token, after all known tokens, hence never into a block of the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

from wisp_runtime.batch import StepKind
from wisp_runtime.engine.constrained.constraint import Constraint
from wisp_runtime.engine.scheduling.admission import max_length, prompt_refusal, refusal
from wisp_runtime.engine.scheduling.pacing import Pace
from wisp_runtime.engine.scheduling.plan import Chunk, Limits, Plan, SampledToken
from wisp_runtime.engine.scheduling.sequence import Sequence, Status
from wisp_runtime.engine.scheduling.sequence_set import SequenceSet
from wisp_runtime.engine.scheduling.step_budget import (
    SHORT_PROMPT_RATIO,
    SHORT_PROMPT_SHARE,
    Prefill,
    PromptBudget,
    share_out,
)
from wisp_runtime.engine.scheduling.waiting_queue import PRIORITY_BOOST
from wisp_runtime.engine.transport.messages import FinishReason, Load, Submit, TokenEvent

_MAX_SCANNED = 256  # waiting sequences that a step scans for short ones


class Scheduler(SequenceSet):
    """Sequences of one engine; requests come and go between ``plan`` and ``commit``.

    Each plan that is not empty is launched and committed, in order; at most one is uncommitted when the next
    is asked for.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._pace = Pace(limits)
        self._checked: tuple[int, ...] | None = None  # prompt that was validated last; choices share one
        self._last: Plan = ()  # not counted as computed yet
        self._uncommitted = 0
        self._steps = self._prompt_tokens = self._generated_tokens = 0

    @property
    def load(self) -> Load:
        """Counts of requests, blocks and tokens: now, and since the engine started."""
        return Load(
            waiting=len(self.waiting) + len(self.waiting.compiling),
            running=len(self.running),
            kv_blocks_used=self.cache.used_blocks,
            kv_blocks_total=self.cache.total_blocks,
            steps=self._steps,
            prompt_tokens_total=self._prompt_tokens,
            cached_tokens_total=self._cached_tokens,
            generated_tokens_total=self._generated_tokens,
            preemptions_total=self._preemptions,
            states=self.cache.state_load,
        )

    def submit(
        self, request: Submit, now_s: float = 0.0, constraint: Constraint | None = None
    ) -> TokenEvent | None:
        """Queue a request; return the event of a refusal: it can never run, or too many wait.

        Where too many wait, the last in the queue is refused, which may be another request. A request with a
        grammar waits for :meth:`constrain`, unless ``constraint`` has its rule, at the answer's start.
        """
        assert request.request_id not in self._sequences, f"request {request.request_id} is already here"
        is_checked, answer_tokens = request.prompt is self._checked, int(request.pooling is None)
        why = None if is_checked else prompt_refusal(request.prompt, self.limits, answer_tokens)
        if why := why or refusal(request, self.limits):
            return TokenEvent(request.request_id, None, "refused", message=why)
        self._checked = request.prompt if answer_tokens else None
        sequence = Sequence(
            request,
            priority_key=self.waiting.next_key(request),
            max_length=max_length(request, self.limits),
            eos=self.limits.eos,
            arrived_s=now_s,
            vocab=self.limits.vocab,
            constraint=constraint,
        )
        self._sequences[sequence.id] = sequence
        surplus = self.waiting.add(sequence, max(0, self.limits.max_running - len(self.running)))
        return self._give_up(surplus, "overloaded") if surplus else None

    def expire(self, now_s: float) -> list[TokenEvent]:
        """End the requests that have waited longer than ``max_queue_wait_s``."""
        return [self._give_up(sequence, "expired") for sequence in self.waiting.expired(now_s)]

    def observe(self, plan: Plan, seconds: float) -> None:
        """Record the duration of the step of ``plan``, for the latency targets."""
        self._pace.observe(plan, seconds)

    def abort(self, request_id: str) -> TokenEvent | None:
        """End a request and free its blocks now; None if no such request is here."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        self._end(sequence)
        return TokenEvent(request_id, None, "abort")

    def plan(self, now_s: float = 0.0) -> Plan:
        """Choose the chunks of the next step: at least one if a sequence may run and no token is pending."""
        self._now_s = now_s
        assert self._uncommitted <= 1, "two steps are under way; commit one before the next plan"
        self._count_last()
        if self.running and not self._is_decode(first := self.running[0]):
            self._reuse(first)
            self._grow(first, self._min_end(first))  # tables may be short, if a group has a window
        self._extra_rows = 0
        self._last = tuple(self._chunks())
        self._uncommitted += bool(self._last)
        return self._last

    def commit(self, plan: Plan, tokens: Iterable[SampledToken]) -> list[TokenEvent]:
        """Append the tokens that the step of ``plan`` sampled.

        Args:
            plan: plan of the step. Sequences that have ended since are skipped.
            tokens: one per chunk with logits, in the plan's order.
        """
        if plan is self._last:
            self._count_last()
        self._steps += 1
        self._uncommitted -= 1
        events = list[TokenEvent]()
        for chunk, token in zip([chunk for chunk in plan if chunk.logits], tokens, strict=True):
            if chunk.sequence.status is not Status.FINISHED:
                events.append(self._append_sampled(chunk, token))
            elif token.error:  # the token is dropped, but blocks computed before may have been published
                self.cache.clear()
        return events

    def _chunks(self) -> list[Chunk]:
        """Return the chunks of the next step."""
        self._displace()
        decodes = self._decodes()
        if not decodes:
            return self._prompt_chunks(self._pace.prompt_budget())
        return decodes + self._prompt_chunks(self._pace.mixed_budget(decodes, is_late=self._is_late()))

    def _is_late(self) -> bool:
        """Return whether the first prompt in line has spent much of the target for its first token."""
        if self.limits.target_first_token_s is None:
            return False
        in_line = chain(self.running, islice(self.waiting, 1))
        first = next((sequence for sequence in in_line if not sequence.generated_tokens), None)
        return first is not None and self._pace.is_late(self._now_s - first.arrived_s)

    def _prompt_chunks(self, budget: PromptBudget) -> list[Chunk]:
        """Return the chunks of prompts within ``budget``, admitting sequences while they fit."""
        prefills = [sequence for sequence in self.running if not self._is_decode(sequence)]
        for sequence in prefills:
            self._reuse(sequence)
        prefills += self._admit_short(prefills, budget)
        shares = share_out(
            [Prefill(prefill.computed_tokens, self._pending(prefill)) for prefill in prefills], budget
        )
        chunks = list[Chunk]()
        for sequence, tokens in zip(prefills, shares, strict=True):
            if tokens and not self._append_prefill(chunks, sequence, tokens, budget):
                return chunks
        while budget.is_open and self.waiting and self._has_place() and self._admit(self.waiting[0]):
            sequence = self._start(self.waiting[0])
            tokens = budget.grant(sequence.computed_tokens, self._pending(sequence))
            if tokens and not self._append_prefill(chunks, sequence, tokens, budget):
                break
        return chunks

    def _append_prefill(
        self, chunks: list[Chunk], sequence: Sequence, tokens: int, budget: PromptBudget
    ) -> bool:
        """Append a sequence's chunk of up to ``tokens`` tokens; False for lack of blocks."""
        wanted, end = self._scorable(sequence, tokens), sequence.computed_tokens + self._pending(sequence)
        reached = self._reach(sequence, wanted, end)
        if reached:
            chunks.append(self._with_copies(self._prefill_chunk(sequence, reached)))
            self._extra_rows += max(0, chunks[-1].logits - 1)
            budget.tokens += tokens - reached
        return reached > 0

    def _prefill_chunk(self, sequence: Sequence, tokens: int) -> Chunk:
        if self._is_decode(sequence):  # all but its last token was cached
            return Chunk.decode(sequence, sequence.computed_tokens)
        return Chunk.prefill(
            sequence, sequence.computed_tokens, tokens, samples=tokens == sequence.pending_tokens
        )

    def _admit_short(self, prefills: list[Sequence], budget: PromptBudget) -> list[Sequence]:
        """Admit and return short sequences that wait behind a long prompt, running or first in the queue."""
        admitted = list[Sequence]()
        if not self.waiting or not budget.is_open or not self._has_place():
            return admitted
        longest = self._pending(prefills[0]) if prefills else self.waiting[0].length
        first = islice(self.waiting, _MAX_SCANNED)
        short = [sequence for sequence in first if sequence.length * SHORT_PROMPT_RATIO <= longest]
        left = budget.tokens * SHORT_PROMPT_SHARE
        for sequence in short:
            if left < 1 or not self._may_overtake(sequence):
                break
            if not self._admit(sequence):
                break
            if sequence is not self.waiting[0]:
                sequence.overtake(self.waiting[0])
            admitted.append(self._start(sequence))
            left -= self._pending(sequence)
        return admitted

    def _may_overtake(self, sequence: Sequence) -> bool:
        """Return whether rows are free for ``sequence`` and for the first in the queue, if it is another."""
        first = self.waiting[0]
        if sequence is first:
            return self._has_place()
        return self._free_rows() > 1 and first.overtaken < PRIORITY_BOOST

    def _count_last(self) -> None:
        """Count the chunks of the last plan, launched by now, as computed; their tokens are pending."""
        row = 0
        for chunk in self._last:
            sequence = chunk.sequence
            if sequence.status is not Status.FINISHED:
                sequence.computed_tokens += chunk.tokens
                if chunk.kind is StepKind.PREFILL or chunk.start < sequence.prompt_tokens:
                    self._prompt_tokens += chunk.tokens
                sequence.scored_tokens += sequence.unscored(chunk.start, sequence.computed_tokens)
                if chunk.max_new_tokens:
                    sequence.pending_sample_row = row + chunk.logits - 1
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
                chunks.append(self._with_copies(Chunk.decode(sequence, start)))
            index += 1
        return chunks

    def _append_sampled(self, chunk: Chunk, sampled: SampledToken) -> TokenEvent:
        sequence = chunk.sequence
        if sampled.error:
            self._end(sequence)
            self.cache.clear()  # its blocks may hold the cause of the invalid logits
            return TokenEvent(sequence.id, None, "error", message=sampled.error)
        if not chunk.samples:
            return TokenEvent(sequence.id, None, prompt_logprobs=sampled.prompt_logprobs)
        self.cache.publish(sequence.cache, sequence.tokens, sequence.computed_tokens)
        if sequence.mask is not None and sequence.mask.error:
            self._end(sequence)
            return TokenEvent(sequence.id, None, "refused", message=sequence.mask.error)
        is_first = not sequence.generated_tokens
        cached_tokens, queued_s = (sequence.cached_tokens, sequence.queued_s) if is_first else (0, 0.0)
        finish = sequence.append(sampled.token)
        if finish:
            self._end(sequence)
        if sampled.pooled is not None:
            return TokenEvent(sequence.id, None, "stop", cached_tokens, pooled=sampled.pooled)
        self._generated_tokens += 1
        reported = sampled.logprobs, "", None, sampled.prompt_logprobs, queued_s
        return TokenEvent(sequence.id, sampled.token, finish, cached_tokens, *reported)

    def _give_up(self, sequence: Sequence, finish: FinishReason) -> TokenEvent:
        self._end(sequence)
        return TokenEvent(sequence.id, None, finish)
