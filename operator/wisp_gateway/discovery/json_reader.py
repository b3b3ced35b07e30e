"""JSON reader: typed access to fields; every validation error names the field by its path."""

from __future__ import annotations

from typing import Any

from wisp_gateway.errors import DiscoveryError


class JsonReader:
    """Typed access to one JSON object, with its path in every validation error."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise DiscoveryError(f"{path}: expected an object, found {type(value).__name__}")
        self._fields: dict[str, Any] = value
        self._path = path

    def has(self, name: str) -> bool:
        """True if the field exists and is not null."""
        return self._fields.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string; empty only if the default is."""
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or (not value and default is None):
            raise self.error(name, "a string", value)
        return value

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """Return one of ``allowed``; ``default`` if absent, or unknown (written by a newer operator)."""
        value = self.text(name, default)
        return value if value in allowed else default

    def optional_text(self, name: str) -> str | None:
        """Return a string, or None if absent."""
        return self.text(name) if self._fields.get(name) is not None else None

    def texts(self, name: str) -> frozenset[str]:
        """Return a list of strings as a set; absent or null is empty."""
        value = self._fields.get(name)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.error(name, "a list of strings", value)
        return frozenset(value)

    def number(self, name: str, default: float, minimum: float = 0.0) -> float:
        """Return a number of at least ``minimum``."""
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < minimum:
            raise self.error(name, f"a number of at least {minimum:g}", value)
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """Return a number of at least 0, or None if absent."""
        return self.number(name, 0.0) if self._fields.get(name) is not None else None

    def integer(self, name: str, default: int, minimum: int = 0) -> int:
        """Return an integer of at least ``minimum``."""
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(name, f"a whole number of at least {minimum}", value)
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean; absent is False."""
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise self.error(name, "true or false", value)
        return value

    def items(self, name: str) -> list[JsonReader]:
        """Return a reader for every object of a list; absent or null is empty."""
        value = self._fields.get(name)
        value = [] if value is None else value
        if not isinstance(value, list):
            raise self.error(name, "a list", value)
        return [JsonReader(item, f"{self._path}.{name}[{index}]") for index, item in enumerate(value)]

    def child(self, name: str) -> JsonReader:
        """Return a reader for a nested object; absent or null is empty."""
        value = self._fields.get(name)
        return JsonReader({} if value is None else value, f"{self._path}.{name}")

    def error(self, name: str, expected: str, value: object) -> DiscoveryError:
        """Return the validation error of a field."""
        return DiscoveryError(f"{self._path}.{name}: expected {expected}, found {value!r}")
