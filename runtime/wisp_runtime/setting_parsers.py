"""Parsers of setting values: a text from the command line or a variable in, a checked value out."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wisp_plan.errors import SizeInvalid
from wisp_plan.units import parse_size
from wisp_runtime.errors import ConfigError

_UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_text(value: str) -> str:
    """Parse any text that is not empty."""
    if not value.strip():
        raise ConfigError("must not be empty")
    return value


def parse_path(value: str) -> Path:
    """Read a path; ``~`` is the home directory."""
    return Path(parse_text(value)).expanduser()


def parse_digests(value: str) -> tuple[str, ...]:
    """Read SHA-256 digests in hex, separated by commas."""
    digests = tuple(part.strip().lower() for part in value.split(","))
    for digest in digests:
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ConfigError(f"{digest!r} is not a SHA-256 digest of 64 hexadecimal digits")
    return digests


def parse_keys(value: str) -> tuple[str, ...]:
    """Read API keys, separated by commas, as SHA-256 digests in hex: no message or log can show a key."""
    keys = [part.strip() for part in value.split(",")]
    if not all(keys):
        raise ConfigError("an API key is empty; give KEY, or KEY,KEY")
    return tuple(hashlib.sha256(key.encode()).hexdigest() for key in keys)


def parse_memory(value: str) -> int:
    """Read a number of bytes: ``512MiB``, ``24Gi``, ``1048576``."""
    try:
        size_bytes = parse_size(value)
    except SizeInvalid as error:
        raise ConfigError(error.message.rstrip(".")) from error
    if size_bytes < 1:
        raise ConfigError(f"{value!r} is no memory at all")
    return size_bytes


def parse_integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Make a parser of whole numbers from ``minimum`` to ``maximum``, both included."""
    bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"

    def parse(value: str) -> int:
        number = int(value) if re.fullmatch(r"-?\d{1,18}", value.strip()) else minimum - 1
        if number < minimum or (maximum is not None and number > maximum):
            raise ConfigError(f"{value!r} is not a whole number {bounds}{_service_link_hint(value)}")
        return number

    return parse


def parse_number(minimum: float, maximum: float, *, excludes_minimum: bool = False) -> Callable[[str], float]:
    """Make a parser of numbers from ``minimum`` to ``maximum``."""
    bounds = f"above {minimum:g}" if excludes_minimum else f"of at least {minimum:g}"
    bounds += f" and at most {maximum:g}" if math.isfinite(maximum) else ""

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        too_low = number <= minimum if excludes_minimum else number < minimum
        if not math.isfinite(number) or too_low or number > maximum:
            raise ConfigError(f"{value!r} is not a number {bounds}")
        return number

    return parse


def parse_choice(*choices: str) -> Callable[[str], str]:
    """Make a parser of one word among ``choices``."""

    def parse(value: str) -> str:
        if value not in choices:
            raise ConfigError(f"{value!r} is not one of {', '.join(choices)}{nearest(value, choices)}")
        return value

    return parse


def parse_auto_or(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make a parser for which ``auto`` is None and everything else goes to ``parse``."""

    def parse_with_auto(value: str) -> Any:
        return None if value == "auto" else parse(value)

    return parse_with_auto


def parse_none_or(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make a parser for which ``none`` is None and everything else goes to ``parse``."""

    def parse_with_none(value: str) -> Any:
        return None if value == "none" else parse(value)

    return parse_with_none


def parse_duration(value: str) -> float:
    """Read a duration above 0, in seconds: ``20ms``, ``1.5s``, ``1m30s``, ``2h``."""
    parts = re.fullmatch(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h))+", value.strip())
    numbers = re.findall(r"([\d.]+)(ms|s|m|h)", value) if parts else []
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in numbers)
    if seconds <= 0:
        raise ConfigError(f"{value!r} is not a duration above 0, such as 20ms, 1.5s or 1m30s")
    return seconds


def nearest(name: str, known: tuple[str, ...] | list[str]) -> str:
    """Return a hint at the closest known spelling, `` (did you mean 'x'?)``, or an empty text."""
    matches = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _service_link_hint(value: str) -> str:
    # Kubernetes sets WISP_PORT=tcp://… in pods beside a Service named "wisp".
    if "://" not in value:
        return ""
    return "; Kubernetes sets such values for a Service named wisp: set enableServiceLinks: false on the pod"
