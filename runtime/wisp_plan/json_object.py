"""Parse an untrusted JSON object: strictly, within bounds of its values, and with printable errors."""

from __future__ import annotations

import json
from collections.abc import Iterable

from wisp_plan.errors import HeaderInvalid

MAX_JSON_VALUES = 1 << 20
"""Values of one document; an index of the largest published models has some 100,000."""

_MAX_SHOWN_CHARACTERS = 97


def parse_object(text: bytes, name: str) -> dict[str, object]:
    """Parse UTF-8 JSON whose outermost value is an object.

    Args:
        name: start of messages, e.g. ``model.safetensors: its header``.

    Raises:
        HeaderInvalid: not JSON, not an object, a key twice, too many values, or text that is no Unicode.
    """
    if (values := count_values(text)) > MAX_JSON_VALUES:
        raise HeaderInvalid(
            f"{name} has {values} values; at most {MAX_JSON_VALUES} are read. Use the model's own repository."
        )
    try:
        parsed = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise HeaderInvalid(f"{name} is not JSON ({error}). It is damaged: download it again.") from error
    if not isinstance(parsed, dict):
        raise HeaderInvalid(f"{name} is a JSON {type(parsed).__name__}, not an object. Download it again.")
    return parsed


def count_values(text: bytes) -> int:
    """Return an upper bound of a JSON document's values: its commas and opening brackets.

    Cheap enough to ask before parsing, which takes 24 bytes of lists for each byte of ``[],``.
    """
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def shorten(value: object) -> str:
    """Show any value in some 100 printable characters."""
    try:
        shown = value if isinstance(value, str) else repr(value)
    except RecursionError:
        shown = f"a deeply nested {type(value).__name__}"
    printable = "".join(map(_escape, shown[:_MAX_SHOWN_CHARACTERS]))
    return printable if len(shown) <= _MAX_SHOWN_CHARACTERS else printable + "..."


def _escape(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _unique(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"'{shorten(key)}' appears twice")
        for text in (key, value):
            if isinstance(text, str):
                text.encode()  # JSON can spell half a surrogate pair, which cannot be printed
        result[key] = value
    return result
