"""Names of layers as lists of a ``quantization_config`` give them: names, ``re:`` regexes and globs.

The lists come from strangers: patterns are few and short, and no repeat of a regex contains another, as such
regexes take time exponential in the name's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from wisp_plan.errors import ConfigInvalid
from wisp_plan.json_object import shorten

REGEX = "re:"
MAX_NAMES = 1 << 14
MAX_CHARACTERS = 256
EVERY_LAYER = "Linear"
"""Class of the modules that are quantized, by which compressed-tensors names all of them."""

_REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT)


@dataclass(frozen=True, slots=True)
class LayerNames:
    """A list of layers.

    Attributes:
        entries: ``re:`` and a regex that matches from the name's start; a glob with ``*``, ``?`` or ``[``;
            the class :data:`EVERY_LAYER`; or a run of whole components of the name, such as ``lm_head``,
            ``mlp.gate``, ``model.layers.0``.
        exact: complete names.
    """

    entries: tuple[str, ...] = ()
    exact: frozenset[str] = frozenset()
    _runs: frozenset[str] = field(init=False, repr=False, compare=False)
    _lengths: frozenset[int] = field(init=False, repr=False, compare=False)
    _others: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sort the entries: thousands of experts are looked up, in lists of hundreds."""
        others = tuple(entry for entry in self.entries if entry == EVERY_LAYER or _pattern(entry))
        runs = frozenset(self.entries) - frozenset(others)
        object.__setattr__(self, "_others", others)
        object.__setattr__(self, "_runs", runs)
        object.__setattr__(self, "_lengths", frozenset(entry.count(".") + 1 for entry in runs))

    @classmethod
    def of(cls, entries: Iterable[object], key: str) -> LayerNames:
        """Check the entries of ``key`` of a ``config.json``.

        Raises:
            ConfigInvalid: too many entries, one that is no text or too long, or a regex that is none or nests
                its repeats.
        """
        listed = tuple(entries)
        if len(listed) > MAX_NAMES:
            raise _invalid(key, f"has {len(listed)} entries; at most {MAX_NAMES} are read")
        for entry in listed:
            if not isinstance(entry, str) or not entry or len(entry) > MAX_CHARACTERS:
                wanted = f"names of layers of at most {MAX_CHARACTERS} characters"
                raise _invalid(key, f"has the entry {shorten(entry)}; expected {wanted}")
            if entry.startswith(REGEX):
                _check_regex(entry.removeprefix(REGEX), key)
        return cls(tuple(str(entry) for entry in listed))

    def __contains__(self, layer: object) -> bool:
        if layer in self.exact:
            return True
        if not isinstance(layer, str):
            return False
        components = layer.split(".")
        return any(
            ".".join(components[first : first + length]) in self._runs
            for length in self._lengths
            for first in range(len(components) - length + 1)
        ) or any(_matches(entry, layer) for entry in self._others)

    def __bool__(self) -> bool:
        return bool(self.entries or self.exact)


def _matches(entry: str, layer: str) -> bool:
    pattern = _pattern(entry)
    return entry == EVERY_LAYER or (pattern is not None and pattern.match(layer) is not None)


@lru_cache(maxsize=1024)
def _pattern(entry: str) -> re.Pattern[str] | None:
    if entry.startswith(REGEX):
        return re.compile(entry.removeprefix(REGEX))
    return re.compile(translate(entry)) if any(special in entry for special in "*?[") else None


def _check_regex(regex: str, key: str) -> None:
    try:
        nests = _nests(parser.parse(regex), inside=False)
    except (re.error, RecursionError, OverflowError) as error:
        raise _invalid(key, f"has {shorten(REGEX + regex)}, which is no regex ({error})") from error
    if nests:
        raise _invalid(key, f"has {shorten(REGEX + regex)}, a regex with a repeat inside of a repeat")


def _nests(tokens: Any, *, inside: bool) -> bool:
    """Return whether a parsed regex repeats something that repeats."""
    if not isinstance(tokens, parser.SubPattern | list | tuple):
        return False
    for token in tokens:
        repeats = isinstance(token, tuple) and bool(token) and token[0] in _REPEATS
        if repeats and inside:
            return True
        if _nests(token, inside=inside or repeats):
            return True
    return False


def _invalid(key: str, wrong: str) -> ConfigInvalid:
    return ConfigInvalid(
        f"config.json: {key} {wrong}. Take config.json from the model's own repository.", key=key
    )
