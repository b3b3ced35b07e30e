"""Responses that the server keeps; of the account with most, the least recently used goes first. Pure.

A response holds the items that led to it, those of the responses before it included: these are shared, and
count once.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wisp_runtime.server.api.responses.events import EventLog

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20
ITEM_BYTES = 256  # of an item's objects, besides its text
RESPONSE_BYTES = 2048

StoredItem = tuple[str, str]
"""Id and JSON text of an item."""


class StoreFull(Exception):
    """Responses that are still written, or one alone, take all that may be kept."""


@dataclass(eq=False)
class Turn:
    """Items that came together: an input, or an output."""

    items: tuple[StoredItem, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes that they take."""
        return sum(sys.getsizeof(text) + ITEM_BYTES for _, text in self.items)


@dataclass(eq=False)
class StoredResponse:
    """A response that is kept.

    Attributes:
        id: its id.
        account: account that may read it; empty without a gateway.
        turns: items that led to it, oldest first.
        output: its output, once it has ended.
        body: response as JSON text at this moment.
        other_bytes: bytes of what else it holds, such as its events.
        is_over: whether it has ended; until then it is never dropped.
        log: its events, if it was created in the background.
    """

    id: str
    account: str
    turns: tuple[Turn, ...]
    body: Callable[[], str]
    output: Turn = field(default_factory=lambda: Turn(()))
    other_bytes: int = 0
    is_over: bool = True
    log: EventLog | None = None

    def conversation(self) -> tuple[Turn, ...]:
        """Return the items up to its end."""
        return (*self.turns, self.output)


class ResponseStore:
    """Stored responses, within bounds of number and bytes.

    Args:
        max_responses: bound of their number.
        max_bytes: bound of their bytes.

    Attributes:
        size_bytes: bytes they take.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._charged: dict[str, tuple[int, tuple[Turn, ...]]] = {}  # own bytes and turns when it was put
        self._turns: Counter[Turn] = Counter()
        self._items: dict[tuple[str, str], StoredItem] = {}
        self._account_bytes: Counter[str] = Counter()
        self._account_responses: Counter[str] = Counter()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def get(self, identity: str, account: str) -> StoredResponse | None:
        """Return a response of ``account``; None if there is none of that id."""
        response = self._responses.get(identity)
        if response is None or response.account != account:
            return None
        self._responses.move_to_end(identity)
        return response

    def item(self, identity: str, account: str) -> StoredItem | None:
        """Return an item of any of the account's responses."""
        return self._items.get((account, identity))

    def put(self, response: StoredResponse) -> None:
        """Keep a response, or what became of it; drop others to make place.

        Raises:
            StoreFull: there is no place even so; it is not kept, and nothing else was dropped for it.
        """
        self.drop(response.id)
        if not self._can_fit(response):
            raise StoreFull
        turns, own_bytes = response.conversation(), RESPONSE_BYTES + response.other_bytes
        self._responses[response.id] = response
        self._charged[response.id] = own_bytes, turns
        self._account_responses[response.account] += 1
        self._add_bytes(own_bytes, response.account)
        for turn in turns:
            self._hold(turn, response.account)
        self._make_place(response)

    def drop(self, identity: str) -> None:
        """Forget a response, if it is there."""
        response = self._responses.pop(identity, None)
        if response is None:
            return
        own_bytes, turns = self._charged.pop(identity)
        for turn in turns:
            self._release(turn, response.account)
        self._add_bytes(-own_bytes, response.account)
        self._account_responses[response.account] -= 1
        if not self._account_responses[response.account]:
            del self._account_responses[response.account], self._account_bytes[response.account]

    def _can_fit(self, response: StoredResponse) -> bool:
        """Return whether a response has a place beside those that cannot be dropped."""
        whole_bytes = RESPONSE_BYTES + response.other_bytes
        whole_bytes += sum(turn.size_bytes for turn in response.conversation())
        if len(self._responses) < self._max_responses and self.size_bytes + whole_bytes <= self._max_bytes:
            return True
        under_way = [name for name, other in self._responses.items() if not other.is_over]
        size_bytes, turns = RESPONSE_BYTES + response.other_bytes, set(response.conversation())
        for own_bytes, held in map(self._charged.__getitem__, under_way):
            size_bytes += own_bytes
            turns.update(held)
        size_bytes += sum(turn.size_bytes for turn in turns)
        return len(under_way) < self._max_responses and size_bytes <= self._max_bytes

    def _make_place(self, kept: StoredResponse) -> None:
        """Drop responses that are over, except ``kept``, until the bounds hold.

        They are the least recently used of the account that has most.
        """
        if self._is_within_bounds():
            return
        over = defaultdict[str, deque[str]](deque)
        for name, response in self._responses.items():
            if response.is_over and response is not kept:
                over[response.account].append(name)
        while not self._is_within_bounds():
            is_many = len(self._responses) > self._max_responses
            shares = self._account_responses if is_many else self._account_bytes
            largest = max(over, key=lambda account: (shares[account], account == kept.account))
            self.drop(over[largest].popleft())
            if not over[largest]:
                del over[largest]

    def _is_within_bounds(self) -> bool:
        return len(self._responses) <= self._max_responses and self.size_bytes <= self._max_bytes

    def _add_bytes(self, size_bytes: int, account: str) -> None:
        self.size_bytes += size_bytes
        self._account_bytes[account] += size_bytes

    def _hold(self, turn: Turn, account: str) -> None:
        self._turns[turn] += 1
        if self._turns[turn] == 1:
            self._add_bytes(turn.size_bytes, account)
            for item in turn.items:
                self._items[account, item[0]] = item

    def _release(self, turn: Turn, account: str) -> None:
        self._turns[turn] -= 1
        if self._turns[turn]:
            return
        del self._turns[turn]
        self._add_bytes(-turn.size_bytes, account)
        for item in turn.items:
            if self._items.get((account, item[0])) is item:
                del self._items[account, item[0]]


def items_of(turns: Sequence[Turn]) -> list[StoredItem]:
    """Return the items of turns, in order."""
    return [item for turn in turns for item in turn.items]
