"""One request's state, from its arrival to its end.

Pure: tokens and block numbers. The scheduler moves it; nothing here decides who runs.
"""

from __future__ import annotations

from array import array
from collections import Counter
from enum import Enum

from wisp_runtime.engine.messages import FinishReason, Submit
from wisp_runtime.engine.prefix import Node

Rank = tuple[int, int]


class Status(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waits again; what it had computed is computed anew
    FINISHED = "finished"


class Sequence:
    """A prompt and the tokens generated after it.

    Attributes:
        request: as it was submitted.
        rank: its place in the queue; lower runs first.
        tokens: prompt, then generated tokens.
        max_length: tokens at which it ends with ``length``, prompt included.
        stop_ids: tokens that end it.
        computed_tokens: leading tokens whose K and V are in the cache.
        blocks: its KV blocks in order (int32, so that packing copies them as memory).
        node: the prefix cache's node of its last entered block; None if it does not take part.
        entered_blocks: leading blocks that are in the prefix cache.
        cached_tokens: prompt tokens it found in the prefix cache.
        counts: how often it generated each token; kept only if a penalty asks for it.
    """

    __slots__ = (
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "counts",
        "entered_blocks",
        "max_length",
        "node",
        "rank",
        "request",
        "status",
        "stop_ids",
        "tokens",
    )

    def __init__(self, request: Submit, *, rank: Rank, max_length: int, eos: frozenset[int]) -> None:
        self.request = request
        self.rank = rank
        self.tokens = list(request.prompt)
        self.max_length = max_length
        self.stop_ids = frozenset(request.stop_token_ids) | (frozenset() if request.ignore_eos else eos)
        self.status = Status.WAITING
        self.computed_tokens = 0
        self.blocks = array("i")
        self.node: Node | None = None
        self.entered_blocks = 0
        self.cached_tokens = 0
        sampling = request.sampling
        self.counts: Counter[int] | None = (
            Counter() if sampling.presence_penalty or sampling.frequency_penalty else None
        )

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def pending_tokens(self) -> int:
        """Tokens not computed yet; 1 while it decodes."""
        return len(self.tokens) - self.computed_tokens

    @property
    def generated_tokens(self) -> int:
        """Tokens after the prompt."""
        return len(self.tokens) - len(self.request.prompt)

    def append(self, token: int) -> FinishReason | None:
        """Take a generated token; return why the sequence ends with it, or None if it goes on."""
        self.tokens.append(token)
        if self.counts is not None:
            self.counts[token] += 1
        if token in self.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.max_length else None

    def forget_computed(self) -> None:
        """Start over: nothing of it is in the cache any more (its blocks were released)."""
        self.computed_tokens = self.entered_blocks = 0
        self.blocks = array("i")
        self.node = None
        if not self.generated_tokens:
            self.cached_tokens = 0
