"""Query strings of the endpoints that read stored responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from wisp_runtime.server.api.errors import bad_request, unsupported
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.api.responses.store import StoredItem
from wisp_runtime.server.http.query_string import invalid_query, query_number
from wisp_runtime.server.parsing.responses.request import ENCRYPTED, INCLUDED, LOGPROBS

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
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
            raise invalid_query("stream", "it must be true or false")
        if "starting_after" not in query:
            return cls(is_stream)
        if not is_stream:
            raise bad_request("'starting_after' is only for streams: add stream=true.", "starting_after")
        return cls(is_stream, query_number("starting_after", query["starting_after"]))


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
            raise invalid_query("order", "it must be asc or desc")
        limit = query_number("limit", query.get("limit", str(DEFAULT_LIMIT)))
        if not 1 <= limit <= MAX_LIMIT:
            raise invalid_query("limit", f"it must be 1 to {MAX_LIMIT}")
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
                raise invalid_query("after", "none of the items has this id")
            begin = names.index(self.after) + 1
        page = ordered[begin : begin + self.limit]
        fields = {
            "object": "list",
            "first_id": page[0][0] if page else "",
            "last_id": page[-1][0] if page else "",
            "has_more": begin + self.limit < len(ordered),
        }
        return f'{to_json(fields)[:-1]},"data":[{",".join(text for _, text in page)}]}}'


def check_include(values: Sequence[str]) -> None:
    """Check an ``include`` of a query: a kept response has what it was created with.

    Raises:
        ApiError: 400; it asks for more, or for nothing that is known.
    """
    for value in values:
        if value in (LOGPROBS, ENCRYPTED):
            raise unsupported("include", f"Set it to [{value!r}] when the response is created.")
        if value not in INCLUDED:
            raise invalid_query("include", f"it must be of {', '.join(INCLUDED)}")
