"""Values of query strings."""

from __future__ import annotations

from starlette.datastructures import QueryParams

from wisp_runtime.server.api.errors import ApiError, bad_request

MAX_DIGITS = 9


def query_values(query: QueryParams, name: str) -> list[str]:
    """Return the values of a list, whose name the official clients write with brackets."""
    return [*query.getlist(name), *query.getlist(f"{name}[]")]


def query_number(name: str, value: str) -> int:
    """Return a number of digits.

    Raises:
        ApiError: 400, naming the parameter.
    """
    if not (value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS):
        raise invalid_query(name, "it must be a number")
    return int(value)


def invalid_query(name: str, reason: str) -> ApiError:
    """A parameter of a query has a wrong value."""
    return bad_request(f"Invalid {name!r} in the query: {reason}.", name, "invalid_value")
