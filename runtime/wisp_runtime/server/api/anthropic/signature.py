"""Signatures of thinking blocks.

Clients send thinking back with its signature. Ours proves nothing, as the model may read any text; where a
client wants no thinking shown, the signature is what carries the text to the next request.
"""

from __future__ import annotations

import base64
import binascii
from hashlib import blake2b

_DIGEST, _TEXT = "wisp-digest-", "wisp-text-"


def digest_signature(text: str) -> str:
    """Return the signature of thinking that is shown."""
    return _DIGEST + blake2b(text.encode(), digest_size=16).hexdigest()


def text_signature(text: str) -> str:
    """Return the signature of thinking that is not shown: its text."""
    return _TEXT + base64.b64encode(text.encode()).decode()


def text_of(signature: str) -> str:
    """Return the text that a signature carries; empty for other servers' signatures."""
    if not signature.startswith(_TEXT):
        return ""
    try:
        return base64.b64decode(signature.removeprefix(_TEXT), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
