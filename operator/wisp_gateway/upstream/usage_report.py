"""Parser of a pod's report on the usage of an answer (docs/contracts.md, *Usage of an answer*).

A pod adds it to the head of an answer, or to the end of a stream as a comment without a newline, which the
stream's proxy holds back like any partial line. Clients get neither.
"""

from __future__ import annotations

import json
import re

from wisp_gateway.inbound.usage import Usage

ASK: tuple[bytes, bytes] = (b"x-wisp-usage", b"1")
HEADER = ASK[0]
COMMENT = b": wisp-usage "
# Bounds of a report's numbers, which go into limits and rates: no answer has more.
MAX_TOKENS = 10**9 - 1
MAX_SECONDS = 1e6
_FINISH = re.compile(r"[a-z_]{1,32}")


def parse(text: bytes, held_s: float) -> Usage | None:
    """Parse a pod's report; None if it is malformed, or out of bounds.

    Args:
        held_s: time that the request spent in the gateway before the pod got it.
    """
    try:
        report = json.loads(text)
        first_s = _seconds(report["firstTokenSeconds"])
        return Usage(
            _tokens(report["promptTokens"]),
            _tokens(report["cachedTokens"]),
            _tokens(report["completionTokens"]),
            _finish(report["finish"]),
            None if first_s is None else held_s + first_s,
            _seconds(report["perTokenSeconds"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _tokens(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise ValueError(value)
    return value


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_SECONDS:
        raise ValueError(value)
    return float(value)


def _finish(value: object) -> str:
    if not isinstance(value, str) or not _FINISH.fullmatch(value):
        raise ValueError(value)
    return value
