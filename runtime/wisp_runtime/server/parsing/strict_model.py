"""Base of the models that bodies of requests are checked against.

Types are strict and unknown keys are refused: dropping a mistyped ``max_token`` would silently change the
output.

A class definition makes no validator yet: :func:`build` does, in a thread, before a model's first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, model_validator

from wisp_runtime.server.parsing.refusals import Refusal, without_neutral

_BUILDING = Lock()


class StrictModel(BaseModel):
    """A JSON object: types are strict, unknown fields refused, numbers finite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)
    foreign: ClassVar[Mapping[str, Refusal]] = {}
    """Fields of the same body in other APIs."""

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        """Refuse an object of more fields than there are: each unknown one would make an error of its own."""
        if isinstance(value, dict) and cls.foreign:
            value = without_neutral(value, cls.foreign)
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            unknown = next(name for name in value if name not in cls.model_fields)
            raise ValueError(f"Unknown parameter: {unknown!r}, and {len(value)} fields altogether.")
        return value


def is_built(model: type[BaseModel]) -> bool:
    """Return whether a model has its validator."""
    return bool(model.__pydantic_complete__)


def build(model: type[BaseModel]) -> None:
    """Make the validator of a model, unless it has one; some 10 ms. Two threads build one after the other."""
    with _BUILDING:
        if not is_built(model):
            model.model_rebuild()


def _as_boolean(value: Any) -> Any:
    if value is not None and not isinstance(value, bool):
        raise ValueError("It must be false, a boolean.")  # a literal takes 0 for False
    return value


Off = Annotated[Literal[False], BeforeValidator(_as_boolean)]
"""A flag that can only be off."""


def by_type(*kinds: str) -> Discriminator:
    """Return the discriminator of objects that differ by ``type``: the tag is that in parentheses.

    An error is of one of them, and its place does not show the tag.
    """
    return Discriminator(
        _tag_of,
        custom_error_type="invalid_tag",
        custom_error_message=f"it must be an object whose 'type' is one of {', '.join(map(repr, kinds))}",
    )


def _tag_of(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"({kind})"
