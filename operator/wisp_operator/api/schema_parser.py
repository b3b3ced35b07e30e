"""Read plain data into frozen dataclasses, collecting every problem instead of stopping at the first.

The dataclass is the schema: its field names (``max_wait`` is written ``maxWait``), types, defaults and
the limits attached to a type with ``Annotated``. The schemas of models are in :mod:`.types`.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal, Union

from wisp_operator.api.quantities import Cores, Duration, Quantity
from wisp_operator.errors import Problem


@dataclass(frozen=True, slots=True)
class Range:
    """Limits of a whole number, both included."""

    low: int
    high: int

    def violation(self, value: int) -> str | None:
        """Say why ``value`` is outside, or None."""
        if self.low <= value <= self.high:
            return None
        return f"{value} is outside {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Text:
    """Limits of a text: its length in characters, and a pattern with its ``meaning`` for messages."""

    max_length: int
    pattern: str = ""
    meaning: str = ""
    min_length: int = 1

    def violation(self, value: str) -> str | None:
        """Say why ``value`` is not allowed, or None."""
        if len(value) < self.min_length:
            return "is empty"
        if len(value) > self.max_length:
            return f"has {len(value)} characters; at most {self.max_length} are allowed"
        if self.pattern and not re.fullmatch(self.pattern, value):  # search would let a last newline pass
            return f"{value!r} is not {self.meaning}"
        return None


@dataclass(frozen=True, slots=True)
class Items:
    """Limits of a list or a map: how many entries, and the key by which entries must differ."""

    max_items: int
    unique: str = ""
    min_items: int = 0

    def violation(self, value: Any) -> str | None:
        """Say why the entries are not allowed, or None."""
        if len(value) < self.min_items:
            entries = "entry" if self.min_items == 1 else "entries"
            return f"needs at least {self.min_items} {entries}; or leave it out"
        if len(value) > self.max_items:
            return f"has {len(value)} entries; at most {self.max_items} are allowed"
        seen = [getattr(item, self.unique) for item in value] if self.unique else []
        twice = sorted({name for name in seen if seen.count(name) > 1})
        return f"{twice[0]!r} appears twice; each {api_name(self.unique)} may appear once" if twice else None


def api_name(name: str) -> str:
    """Name a dataclass field as users write it: ``max_wait`` is ``maxWait``."""
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Find the known spelling closest to ``name``, or None if nothing is close."""
    by_lower = {spelling.lower(): spelling for spelling in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def unknown_field(key: object, parent: str, known: Iterable[str]) -> Problem:
    """Report a field that does not exist, with the spelling that was probably meant."""
    path = f"{parent}.{key}" if parent else str(key)
    guess = nearest(str(key), known := sorted(known))
    if guess is None:
        return Problem(path, f"unknown field; known here: {', '.join(known)}")
    meant = f"{parent}.{guess}" if parent else guess
    return Problem(path, f"unknown field; did you mean {meant}?")


def read_object(cls: type[Any], data: Any, path: str, problems: list[Problem]) -> Any:
    """Build a ``cls`` from ``data``; what cannot be read keeps its default and becomes a problem.

    Args:
        cls: a dataclass whose annotations this module understands.
        data: the mapping as YAML or JSON gave it. A null counts as absent, as on the API server.
        path: path of ``data``, for messages.
        problems: list that receives every problem.
    """
    if not isinstance(data, Mapping):
        problems.append(Problem(path, f"{show(data)} is not a map of fields"))
        data = {}
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {api_name(field.name): field for field in dataclasses.fields(cls)}
    problems += [unknown_field(key, path, fields) for key in data if key not in fields]
    values = {}
    for key, field in fields.items():
        given = data.get(key)
        if given is not None:
            values[field.name] = _read(hints[field.name], given, f"{path}.{key}", problems)
        if values.get(field.name) is None:
            values[field.name] = _default(field)
            if given is None and values[field.name] is MISSING:
                problems.append(Problem(f"{path}.{key}", "is required"))
    return cls(**values)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _read(hint: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    """Read one value of the type ``hint``; None if it could not be read."""
    limits: tuple[Any, ...] = ()
    if typing.get_origin(hint) is typing.Annotated:
        hint, *rest = typing.get_args(hint)
        limits = tuple(rest)
    before = len(problems)
    result = _read_bare(hint, value, path, problems)
    for limit in limits:
        violation = limit.violation(result) if isinstance(result, _limited(limit)) else None
        if violation and len(problems) == before:
            problems.append(Problem(path, violation))
            return None
    return result


def _limited(limit: Any) -> tuple[type, ...]:
    return {Range: (int,), Text: (str,), Items: (tuple, dict)}[type(limit)]


def _read_bare(hint: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _read_union(arguments, value, path, problems)
    if origin is Literal:
        return _read_choice(arguments, value, path, problems)
    if origin is tuple:
        return _read_list(arguments[0], value, path, problems)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _read_texts(arguments[1], value, path, problems)
    if dataclasses.is_dataclass(hint):
        return read_object(typing.cast(type[Any], hint), value, path, problems)
    return _read_scalar(hint, value, path, problems)


def _read_union(arguments: tuple[Any, ...], value: Any, path: str, problems: list[Problem]) -> Any:
    """Read ``X | None`` as X (null never reaches here), and a number or a word as what it looks like."""
    options = [option for option in arguments if option is not types.NoneType]
    if len(options) == 1:
        return _read(options[0], value, path, problems)
    number, words = options
    if isinstance(value, str):
        return _read_choice(typing.get_args(words), value, path, problems, instead="a whole number")
    return _read(number, value, path, problems)


def _read_choice(
    choices: tuple[Any, ...], value: Any, path: str, problems: list[Problem], instead: str = ""
) -> Any:
    if value in choices and isinstance(value, str):
        return value
    allowed = ", ".join(choices) + (f" or {instead}" if instead else "")
    guess = nearest(value, choices) if isinstance(value, str) else None
    hint = f"; did you mean {guess}?" if guess else ""
    if isinstance(value, bool):
        hint = "; YAML reads on, off, yes and no as true and false unless they are in quotes"
    problems.append(Problem(path, f"{show(value)} is not one of: {allowed}{hint}"))
    return None


def _read_list(item: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    if not isinstance(value, list):
        problems.append(Problem(path, f"{show(value)} is not a list"))
        return None
    before = len(problems)
    items = tuple(_read(item, entry, f"{path}[{i}]", problems) for i, entry in enumerate(value))
    return items if len(problems) == before else None


def _read_texts(item: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    if not isinstance(value, Mapping):
        problems.append(Problem(path, f"{show(value)} is not a map of texts"))
        return None
    before = len(problems)
    texts = {str(key): _read(item, entry, f"{path}.{key}", problems) for key, entry in value.items()}
    return texts if len(problems) == before else None


_KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    str: "a text (put it in quotes)",
    Duration: "a duration; write a number and ms, s, m or h, e.g. 90s or 1h30m",
    Quantity: "a size; write a whole number and Mi, Gi or Ti, e.g. 24Gi",
    Cores: "a number of cores; write e.g. 500m, 2 or 1.5 (in quotes)",
}


def _read_scalar(kind: type[Any], value: Any, path: str, problems: list[Problem]) -> Any:
    plain: tuple[type, ...] = (str,) if issubclass(kind, str) else (kind,)
    if type(value) not in (*plain, *((int,) if kind is Cores else ())):
        problems.append(Problem(path, f"{show(value)} is not {_KINDS[kind]}"))
        return None
    try:
        return kind(value)
    except ValueError as error:
        problems.append(Problem(path, str(error)))
        return None


def show(value: Any) -> str:
    """Show a value in a message as YAML users know it, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _shown.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_shown = reprlib.Repr()  # bounded in depth and breadth: YAML aliases can stand for more than memory holds
_shown.maxstring = 60
