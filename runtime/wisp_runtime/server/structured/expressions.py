"""Regular expressions of requests, as llguidance's Lark reads them."""

from __future__ import annotations

import re

_ASCII = {r"\d": "0-9", r"\w": "0-9A-Za-z_", r"\s": r"\t\n\f\r "}
_PARTS = re.compile(r"\\.|\[\^|.", re.DOTALL)
_IN_LARK = {"/": r"\/", "\n": r"\n"}


def lark_expression(regex: str) -> str:
    r"""Return a regular expression as Lark writes it between slashes; anchors at its ends are implied.

    ``\d``, ``\w`` and ``\s`` are of ASCII, as in a schema's ``pattern``: what they allow is right both for
    clients whose expressions read them so (ECMAScript, RE2) and for those that also take other scripts'
    (Python). So they stay as they are where they exclude, as in ``[^\d]``.
    """
    written, classes = [], []  # classes: of the brackets around a part, whether they exclude
    for part in _PARTS.findall(regex):
        if part in {"[", "[^"}:
            classes.append(part == "[^")
        elif part == "]" and classes:
            classes.pop()
        if part in _ASCII and not any(classes):
            part = _ASCII[part] if classes else f"[{_ASCII[part]}]"
        written.append(_IN_LARK.get(part, part))
    return "".join(written)
