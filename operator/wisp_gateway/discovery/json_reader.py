"""Typed access to JSON that others wrote: every complaint names the field by its path."""

from __future__ import annotations

from typing import Any

from wisp_gateway.errors import DirectoryError


class Reader:
    """Typed access to one JSON object, with the path in every complaint."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise DirectoryError(f"{path}: expected an object, found {type(value).__name__}")
        self._fields: dict[str, Any] = value
        self._path = path

    def has(self, name: str) -> bool:
        """The field is there and not null."""
        return self._fields.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """A string; empty only where the default is."""
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or (not value and default is None):
            raise self.complaint(name, "a string", value)
        return value

    def choice(self, name: str, among: tuple[str, ...], otherwise: str) -> str:
        """One of ``among``; ``otherwise`` if absent, or a word of an operator newer than we are."""
        value = self.text(name, otherwise)
        return value if value in among else otherwise

    def optional_text(self, name: str) -> str | None:
        """A string, or None if absent."""
        return self.text(name) if self._fields.get(name) is not None else None

    def number(self, name: str, default: float, least: float = 0.0) -> float:
        """A number of at least ``least``."""
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            raise self.complaint(name, f"a number of at least {least:g}", value)
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A number from 0, or None if absent."""
        return self.number(name, 0.0) if self._fields.get(name) is not None else None

    def whole(self, name: str, default: int, least: int = 0) -> int:
        """A whole number of at least ``least``."""
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.complaint(name, f"a whole number of at least {least}", value)
        return value

    def flag(self, name: str) -> bool:
        """True or false; absent is false."""
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise self.complaint(name, "true or false", value)
        return value

    def items(self, name: str) -> list[Reader]:
        """Every object of a list; absent or null is empty."""
        value = self._fields.get(name)
        value = [] if value is None else value
        if not isinstance(value, list):
            raise self.complaint(name, "a list", value)
        return [Reader(item, f"{self._path}.{name}[{index}]") for index, item in enumerate(value)]

    def child(self, name: str) -> Reader:
        """An object; absent or null is empty."""
        value = self._fields.get(name)
        return Reader({} if value is None else value, f"{self._path}.{name}")

    def complaint(self, name: str, expected: str, found: object) -> DirectoryError:
        """What to raise about a field."""
        return DirectoryError(f"{self._path}.{name}: expected {expected}, found {found!r}")
