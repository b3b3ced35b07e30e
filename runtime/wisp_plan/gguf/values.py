"""Binary values of a GGUF header, read one after the other from the bytes that are there so far.

Bounded: counts and lengths come from strangers, and are compared with the file before anything is read.
Source of the format: ``docs/gguf.md`` of ggml.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from wisp_plan.errors import HeaderInvalid
from wisp_plan.json_object import shorten

MAX_VALUES = 1 << 22
"""Strings of a header's lists; those of a vocabulary of 262,144 tokens and its merges are a million."""

_SCALARS = {
    **{0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h")},
    **{4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<?")},
    **{10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d")},
}
_STRING, _ARRAY = 8, 9
_COUNT = struct.Struct("<Q")
_KIND = struct.Struct("<I")


class MoreNeeded(Exception):
    """The header goes on behind the bytes that are there; ``end`` is the least length that is needed."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


@dataclass(frozen=True, slots=True)
class ListValue:
    """A list of a header, not decoded yet.

    Attributes:
        count: number of its elements.
        kind: number of their kind.
        raw: its bytes.
    """

    count: int
    kind: int
    raw: bytes

    def decode(self) -> list[object]:
        """Return the elements.

        Raises:
            HeaderInvalid: text that is no UTF-8.
        """
        cursor = Cursor(self.raw, "a list")
        if self.kind == _STRING:
            return [cursor.text() for _ in range(self.count)]
        scalar = _SCALARS[self.kind]
        return [value for (value,) in scalar.iter_unpack(self.raw)]


Value = str | int | float | bool | ListValue


class Cursor:
    """Position in the first bytes of a file.

    Args:
        raw: the bytes.
        name: name of the file, for messages.

    Attributes:
        position: offset of the next value.
    """

    def __init__(self, raw: bytes, name: str) -> None:
        self.position = 0
        self._raw, self._name = raw, name
        self._values = 0

    def take(self, size_bytes: int) -> bytes:
        """Read so many bytes.

        Raises:
            MoreNeeded: they are not there yet.
        """
        end = self.position + size_bytes
        if end > len(self._raw):
            raise MoreNeeded(end)
        start, self.position = self.position, end
        return self._raw[start:end]

    def count(self) -> int:
        """Read a count, a length or an offset."""
        (value,) = _COUNT.unpack(self.take(_COUNT.size))
        return int(value)

    def kind(self) -> int:
        """Read the number of a kind or a type."""
        (value,) = _KIND.unpack(self.take(_KIND.size))
        return int(value)

    def text(self) -> str:
        """Read a string.

        Raises:
            HeaderInvalid: it is no UTF-8.
        """
        raw = self.take(self.count())
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"has the text {shorten(raw)}, which is no UTF-8") from error

    def value(self) -> Value:
        """Read a value of the metadata, its kind first; a list is skipped, and kept as it is."""
        kind = self.kind()
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._list()
        if kind not in _SCALARS:
            raise self.damaged(f"has a value of kind {kind}, which there is not")
        scalar = _SCALARS[kind]
        (value,) = scalar.unpack(self.take(scalar.size))
        return value  # type: ignore[no-any-return]

    def _list(self) -> ListValue:
        kind, count = self.kind(), self.count()
        start = self.position
        if kind == _STRING:
            self._skip_strings(count)
        elif kind in _SCALARS:
            self.take(count * _SCALARS[kind].size)
        else:
            raise self.damaged(f"has a list of values of kind {kind}, which cannot be read")
        return ListValue(count, kind, self._raw[start : self.position])

    def _skip_strings(self, count: int) -> None:
        self._values += count
        if self._values > MAX_VALUES:
            raise HeaderInvalid(
                f"{self._name} has lists of more than {MAX_VALUES} strings, unlike any model's. "
                "Use the model's own repository."
            )
        raw, position, end = self._raw, self.position, len(self._raw)
        unpack, width = _COUNT.unpack_from, _COUNT.size
        for _ in range(count):
            if position + width > end:
                raise MoreNeeded(position + width)
            position += width + unpack(raw, position)[0]
        if position > end:
            raise MoreNeeded(position)
        self.position = position

    def damaged(self, claim: str) -> HeaderInvalid:
        """Return the error for a header that contradicts the format."""
        return HeaderInvalid(f"{self._name} {claim}. It is damaged: download it again.")
