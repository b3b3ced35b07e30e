"""Query strings of the endpoints that read stored responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from wisp_runtime.server.api.errors import ApiError, bad_request
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.api.responses.store import StoredItem

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
MAX_DIGITS = 9
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class StreamQuery:
    """Query of a retrieval.

    Attributes:
        is_stream: whether its events are asked for.
        starting_after: number of the event behind which they begin.
    """

    is_stream: bool = False
    starting_after: int = -1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> StreamQuery:
        """Read a query string.

        Raises:
            ApiError: 400, naming the parameter.
        """
        is_stream = BOOLEANS.get(query.get("stream", "false").lower())
        if is_stream is None:
            raise _invalid("stream", "it must be true or false")
        if "starting_after" not in query:
            return cls(is_stream)
        if not is_stream:
            raise bad_request("'starting_after' is only for streams: add stream=true.", "starting_after")
        return cls(is_stream, _number("starting_after", query["starting_after"]))


@dataclass(frozen=True)
class ItemsQuery:
    """Query of a page of items.

    Attributes:
        after: id of the item behind which the page begins.
        limit: items of the page.
        order: order of all items; ``desc`` is the newest first.
    """

    after: str | None = None
    limit: int = DEFAULT_LIMIT
    order: Literal["asc", "desc"] = "desc"

    @classmethod
    def of(cls, query: Mapping[str, str]) -> ItemsQuery:
        """Read a query string.

        Raises:
            ApiError: 400, naming the parameter.
        """
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise _invalid("order", "it must be asc or desc")
        limit = _number("limit", query.get("limit", str(DEFAULT_LIMIT)))
        if not 1 <= limit <= MAX_LIMIT:
            raise _invalid("limit", f"it must be 1 to {MAX_LIMIT}")
        return cls(query.get("after"), limit, cast(Literal["asc", "desc"], order))

    def page(self, items: Sequence[StoredItem]) -> str:
        """Return the page of ``items``, oldest first, as JSON text.

        Raises:
            ApiError: 400; ``after`` names none of them.
        """
        ordered = list(items) if self.order == "asc" else list(reversed(items))
        begin = 0
        if self.after is not None:
            names = [identity for identity, _ in ordered]
            if self.after not in names:
                raise _invalid("after", "none of the items has this id")
            begin = names.index(self.after) + 1
        page = ordered[begin : begin + self.limit]
        fields = {
            "object": "list",
            "first_id": page[0][0] if page else "",
            "last_id": page[-1][0] if page else "",
            "has_more": begin + self.limit < len(ordered),
        }
        return f'{to_json(fields)[:-1]},"data":[{",".join(text for _, text in page)}]}}'


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS):
        raise _invalid(name, "it must be a number")
    return int(value)


def _invalid(name: str, reason: str) -> ApiError:
    return bad_request(f"Invalid {name!r} in the query: {reason}.", name, "invalid_value")
