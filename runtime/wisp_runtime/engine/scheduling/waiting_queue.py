"""Waiting sequences by priority key: bounded, each with a deadline.

Pure. A request's priority key is its arrival number plus a boost for each level of priority; each further
choice of one request counts as a level, so that a stranger does not wait behind all choices of another's
request. The boost is bounded: after :data:`PRIORITY_BOOST` later requests a level is made up for, and nothing
starves.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from operator import attrgetter

from wisp_runtime.engine.scheduling.sequence import PriorityKey, Sequence, Status
from wisp_runtime.engine.transport.messages import Submit

PRIORITY_BOOST = 1024  # in requests, for each level of priority
MAX_WAITING_TOKENS = 1 << 22
"""Tokens of all prompts that wait, each counted once: 150 MB of numbers. A single prompt may have more."""
by_priority_key = attrgetter("priority_key")


class WaitingQueue:
    """Sequences that have no blocks yet, or none any more.

    Args:
        max_waiting: sequences that may wait, with :data:`MAX_WAITING_TOKENS` of prompts in all; those that
            were preempted do not count.
        max_wait_s: seconds after which a request none of whose choices has started is given up; None: never.

    Attributes:
        compiling: sequences whose grammars are being compiled, by priority key. They count, and their time
            runs, but iteration does not yield them: no step waits for them.
    """

    def __init__(self, max_waiting: int, max_wait_s: float | None) -> None:
        self._max_waiting, self._max_wait_s = max_waiting, max_wait_s
        self._sequences: list[Sequence] = []
        self.compiling: list[Sequence] = []
        self._arrived: dict[Sequence, None] = {}  # first choices that have not started, by arrival
        self._prompts = _Prompts()
        self._requests = self._submitted = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __getitem__(self, index: int) -> Sequence:
        return self._sequences[index]

    def next_key(self, request: Submit) -> PriorityKey:
        """Return the priority key of a request that arrives now."""
        self._requests += request.choice == 0
        self._submitted += 1
        return self._requests + PRIORITY_BOOST * (request.priority + request.choice), self._submitted

    def add(self, sequence: Sequence, free_places: int = 0) -> Sequence | None:
        """Add a sequence that arrives; if too much waits, return the one that is to be refused.

        That is the last in line; but if its prompt does not make enough space, it is ``sequence`` itself.
        As many as there are ``free_places`` will start at once, and do not count.
        """
        most = self._max_waiting + free_places
        self.put_back(sequence)
        if self._max_wait_s is not None and sequence.request.choice == 0:
            self._arrived[sequence] = None
        excess = self._prompts.tokens - MAX_WAITING_TOKENS
        if len(self._sequences) + len(self.compiling) <= most and excess <= 0:
            return None
        everything = sorted([*self._sequences, *self.compiling], key=by_priority_key)
        fresh = [waiting for waiting in everything if waiting.status is not Status.PREEMPTED]
        if excess > 0 and len(fresh) > 1:
            return fresh[-1] if self._prompts.tokens_of(fresh[-1]) >= excess else sequence
        return fresh[-1] if len(fresh) > most else None

    def put_back(self, sequence: Sequence) -> None:
        """Add a sequence that was preempted."""
        insort(self._line_of(sequence), sequence, key=by_priority_key)
        self._prompts.add(sequence)

    def compiled(self, sequence: Sequence) -> None:
        """Let a sequence start whose grammar is compiled; its place in line is that of its arrival."""
        self.compiling.remove(sequence)
        sequence.status = Status.WAITING
        insort(self._sequences, sequence, key=by_priority_key)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that starts, or that ended."""
        self._line_of(sequence).remove(sequence)
        self._prompts.remove(sequence)
        self._arrived.pop(sequence, None)

    def expired(self, now_s: float) -> list[Sequence]:
        """Return the sequences that have waited longer than they may."""
        expired = list[Sequence]()
        for sequence in self._arrived:
            if self._max_wait_s is None or now_s - sequence.arrived_s < self._max_wait_s:
                break
            expired.append(sequence)
        return expired

    def _line_of(self, sequence: Sequence) -> list[Sequence]:
        return self.compiling if sequence.status is Status.COMPILING else self._sequences


class _Prompts:
    """Prompts of sequences that wait; choices share theirs.

    Attributes:
        tokens: tokens of all, each prompt counted once.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._sharers: dict[int, int] = {}

    def add(self, sequence: Sequence) -> None:
        prompt = sequence.request.prompt
        sharers = self._sharers[id(prompt)] = self._sharers.get(id(prompt), 0) + 1
        self.tokens += len(prompt) if sharers == 1 else 0

    def remove(self, sequence: Sequence) -> None:
        self.tokens -= self.tokens_of(sequence)
        prompt = sequence.request.prompt
        self._sharers[id(prompt)] -= 1
        if not self._sharers[id(prompt)]:
            del self._sharers[id(prompt)]

    def tokens_of(self, sequence: Sequence) -> int:
        """Return the tokens that are gone when ``sequence`` is."""
        prompt = sequence.request.prompt
        return len(prompt) if self._sharers[id(prompt)] == 1 else 0
