"""Sentences of validation errors: what is wrong, where, and the form that would do."""

from __future__ import annotations

import difflib
import re

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from wisp_runtime.server.api.errors import ApiError, bad_request
from wisp_runtime.server.parsing.hints.foreign_fields import USER_MESSAGE

NEAR = 0.75  # share of equal letters from which a name is taken for a misspelling
_SUBJECT = re.compile(r"^(?:Input|String|List|Dictionary|Value) should ")
_OBJECT = re.compile(r"a valid dictionary(?: or (?:instance of \w+|object to extract fields from))?")
_FORMS = ((re.compile(r"messages"), USER_MESSAGE), (re.compile(r"messages\.\d+"), USER_MESSAGE[1:-1]))


def explained(detail: ErrorDetails, param: str, model: type[BaseModel]) -> ApiError:
    """Return a validation error as the API's error.

    Args:
        detail: the error.
        param: its place in the body, dotted.
        model: model of the body.
    """
    match detail["type"]:
        case "extra_forbidden":
            known = list(model.model_fields) if len(detail["loc"]) == 1 else []
            close = difflib.get_close_matches(param, known, n=1, cutoff=NEAR)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            return bad_request(f"Unknown parameter: {param!r}.{hint}", param, "unknown_parameter")
        case "missing":
            return bad_request(f"Missing required parameter: {param!r}.", param, "missing_required_parameter")
        case "value_error":
            message = detail["msg"].removeprefix("Value error, ")
            return bad_request(message if param in message else f"{param}: {message}", param, "invalid_value")
        case kind:
            code = "invalid_type" if kind.endswith("_type") else "invalid_value"
            return bad_request(f"Invalid {param!r}: {_in_words(detail, param)}.", param, code)


def _in_words(detail: ErrorDetails, param: str) -> str:
    """Return the validator's message without its own terms, and the form of a value of another type."""
    text = _SUBJECT.sub("it must ", detail["msg"]).replace(" after validation", "")
    text = _OBJECT.sub("an object", text)
    form = next((form for place, form in _FORMS if place.fullmatch(param)), None)
    return f"{text}, such as {form}" if form and detail["type"] not in ("too_long", "value_error") else text
