"""Parse an untrusted JSON object: strictly, and with printable errors."""

from __future__ import annotations

import json
from collections.abc import Iterable

from wisp_plan.errors import HeaderInvalid


def parse_object(text: bytes, name: str) -> dict[str, object]:
    """Parse UTF-8 JSON whose outermost value is an object.

    Args:
        name: start of messages, e.g. ``model.safetensors: its header``.

    Raises:
        HeaderInvalid: not JSON, not an object, a key twice, or text that is no Unicode.
    """
    try:
        parsed = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise HeaderInvalid(f"{name} is not JSON ({error}). It is damaged: download it again.") from error
    if not isinstance(parsed, dict):
        raise HeaderInvalid(f"{name} is a JSON {type(parsed).__name__}, not an object. Download it again.")
    return parsed


def shorten(value: object) -> str:
    """Show any value in at most 100 printable characters."""
    shown = value if isinstance(value, str) else repr(value)
    printable = shown[:97].encode("utf-8", "backslashreplace").decode()
    return printable if len(shown) <= 97 else printable + "..."


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
