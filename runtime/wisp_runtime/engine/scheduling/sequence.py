"""State of one request, from its arrival to its end.

Pure: tokens and block numbers. The scheduler changes it; nothing here decides which sequences run.
"""

from __future__ import annotations

from array import array
from enum import Enum
from typing import Any

from wisp_runtime.engine.cache.sequence_cache import SequenceCache
from wisp_runtime.engine.constrained.constraint import Constraint
from wisp_runtime.engine.constrained.masks import TokenMask
from wisp_runtime.engine.constrained.rules import rules_of
from wisp_runtime.engine.constrained.thinking import thinking_of
from wisp_runtime.engine.scheduling.seen_tokens import SeenTokens
from wisp_runtime.engine.transport.messages import FinishReason, Submit

PriorityKey = tuple[int, int]
MAX_COUNTED = 3072
"""Different tokens of a sequence that penalties count: the first ones. A GPU has fixed space for the counts
and biases of all rows, and a step that needed more would end the engine."""


class Status(Enum):
    """Stage of a sequence's life."""

    COMPILING = "compiling"  # its grammar is; it has its place in line and cannot start
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waits again; all of it is computed anew
    FINISHED = "finished"


class TokenCounts:
    """Number of times each of a sequence's generated tokens came, up to :data:`MAX_COUNTED` different ones.

    Arrays that only grow, so that a step copies them as they are.

    Attributes:
        ids: different tokens, in the order in which they first came.
        counts: number of times each came.
    """

    __slots__ = ("_places", "counts", "ids")

    def __init__(self) -> None:
        self.ids, self.counts = array("i"), array("i")
        self._places: dict[int, int] = {}

    def add(self, token: int) -> None:
        """Count a token once more."""
        place = self._places.get(token)
        if place is not None:
            self.counts[place] += 1
        elif len(self.ids) < MAX_COUNTED:
            self._places[token] = len(self.ids)
            self.ids.append(token)
            self.counts.append(1)


class Sequence:
    """A prompt and the tokens generated after it.

    Attributes:
        request: the request as it was submitted.
        priority_key: place in the queue; lower runs first.
        tokens: prompt, then generated tokens.
        prompt_tokens: number of the prompt's.
        max_length: tokens at which it ends with ``length``, prompt included.
        stop_ids: tokens that end it.
        end_ids: those, and the model's own, which end an answer under a rule.
        computed_tokens: leading tokens whose K and V are in the cache, or will be before any later step runs.
        pending_sample_row: row of the last launched step that samples its next token, while that token is not
            known; -1 when all its tokens are known.
        cache: blocks and state slots; empty unless it runs.
        cached_tokens: prompt tokens found in the prefix cache.
        counts: number of times each token was generated; None without presence and frequency penalty.
        has_repetition: whether it has a repetition penalty, which counts :meth:`seen`.
        mask: tokens that its rules allow next; None without a rule.
        scored_tokens: leading prompt tokens after which log-probabilities are computed, or not wanted.
        biases: tokens whose logits are biased, and by how much; of a token named twice, the last.
        arrived_s: time at which the request came.
        queued_s: time from then to its first admission.
        refused_at: state of the cache in which it was refused admission last.
        overtaken: number of shorter sequences that were admitted before it although they came later.
        needs_all_states: whether its prompt is reduced to the mean of all its tokens' hidden states.
        state_sum: sum of those of its computed tokens; the runner's.
        vocab: V, number of the model's token ids.
    """

    __slots__ = (
        "_seen",
        "arrived_s",
        "biases",
        "cache",
        "cached_tokens",
        "computed_tokens",
        "counts",
        "end_ids",
        "has_repetition",
        "mask",
        "max_length",
        "needs_all_states",
        "overtaken",
        "pending_sample_row",
        "priority_key",
        "prompt_tokens",
        "queued_s",
        "refused_at",
        "request",
        "scored_tokens",
        "state_sum",
        "status",
        "stop_ids",
        "tokens",
        "vocab",
    )

    def __init__(
        self,
        request: Submit,
        *,
        priority_key: PriorityKey,
        max_length: int,
        eos: frozenset[int],
        arrived_s: float = 0.0,
        vocab: int = 0,
        constraint: Constraint | None = None,
    ) -> None:
        self.request = request
        self.priority_key = priority_key
        self.tokens: list[int] | tuple[int, ...] = request.prompt  # choices that wait share it
        self.prompt_tokens = len(self.tokens)
        self.max_length = max_length
        ignores_eos = request.ignore_eos and request.constraint is None  # what is complete may only end
        self.stop_ids = frozenset(request.stop_token_ids) | (frozenset() if ignores_eos else eos)
        is_compiled = constraint is not None or request.constraint is None
        self.status = Status.WAITING if is_compiled else Status.COMPILING
        self.computed_tokens = 0
        self.pending_sample_row = -1
        self.cache = SequenceCache()
        self.cached_tokens = 0
        sampling = request.sampling
        biases = dict(sampling.logit_bias)
        self.biases = array("i", biases), array("f", biases.values())
        has_penalty = sampling.presence_penalty or sampling.frequency_penalty
        self.counts = TokenCounts() if has_penalty else None
        self.has_repetition = sampling.repetition_penalty != 1
        self.vocab, self.end_ids = vocab, self.stop_ids | eos
        self.mask: TokenMask | None = None
        if is_compiled:
            self.constrain(constraint or thinking_of(request.thinking, None))
        self.scored_tokens = self.prompt_tokens - 1 if sampling.prompt_logprobs is None else 0
        self._seen: SeenTokens | None = None  # made when it first samples: those that wait need none
        self.arrived_s, self.queued_s, self.overtaken = arrived_s, 0.0, 0
        self.refused_at: object = None
        self.needs_all_states = request.pooling is not None and request.pooling.kind == "mean"
        self.state_sum: Any = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def level(self) -> int:
        """Level of its priority; each further choice of one request counts as one."""
        return self.request.priority + self.request.choice

    @property
    def length(self) -> int:
        """Tokens it has, the awaited one included."""
        return len(self.tokens) + (self.pending_sample_row >= 0)

    @property
    def pending_tokens(self) -> int:
        """Tokens not computed yet."""
        return self.length - self.computed_tokens

    @property
    def generated_tokens(self) -> int:
        """Tokens after the prompt."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def counts_tokens(self) -> bool:
        """Whether sampling its next token depends on all its tokens before."""
        return self.counts is not None or self.has_repetition or self.has_mask

    @property
    def has_mask(self) -> bool:
        """Whether its next token, or the one behind it, is restricted."""
        return self.mask is not None and not self.mask.is_free

    @property
    def reads_prefixes(self) -> bool:
        """Whether it may begin behind tokens that are in the prefix cache."""
        request = self.request
        is_scored = request.sampling.prompt_logprobs is not None
        return request.use_prefix_cache and not (is_scored or self.needs_all_states)

    def constrain(self, constraint: Constraint | None) -> None:
        """Set the rule on the answer, at its start, besides those of the sampling parameters."""
        rules = rules_of(self.request.sampling, self.stop_ids)
        if constraint is not None or rules is not None:
            self.mask = TokenMask(constraint, self.end_ids, self.vocab, rules)

    def unscored(self, start: int, end: int) -> int:
        """Return after how many of its tokens ``start`` to ``end`` the prompt's next one is to be scored."""
        return max(0, min(end, self.prompt_tokens - 1) - max(start, self.scored_tokens))

    def seen(self) -> SeenTokens:
        """Return the tokens of its prompt and its answer so far."""
        if self._seen is None:
            self._seen = SeenTokens(self.vocab, self.tokens)
        return self._seen

    def overtake(self, first: Sequence) -> None:
        """Rank directly behind ``first``, the first in line: none that waits behind that displaces it."""
        first.overtaken += 1
        if self.level == first.level:
            self.priority_key = first.priority_key[0], self.priority_key[1]

    def append(self, token: int) -> FinishReason | None:
        """Append a generated token; return why the sequence ends with it, or None if it goes on."""
        self.pending_sample_row = -1
        if isinstance(self.tokens, tuple):
            self.tokens = list(self.tokens)
        self.tokens.append(token)
        if self.counts is not None:
            self.counts.add(token)
        if self._seen is not None:
            self._seen.add(token)
        if self.mask is not None:
            self.mask.advance(token)
            self.mask = None if self.mask.is_over else self.mask
        if token in self.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.max_length else None

    def forget_computed(self) -> None:
        """Start over: nothing of it is in the cache any more (what it referred to was released)."""
        self.computed_tokens = 0
        self.cache = SequenceCache()
        if self.length == self.prompt_tokens:
            self.cached_tokens = 0
