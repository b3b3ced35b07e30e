"""Moments as Kubernetes writes them (RFC 3339 in UTC) and as we count them (Unix seconds)."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(seconds: float) -> str:
    """Write Unix seconds as Kubernetes' ``Time``: ``2026-01-31T12:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(seconds: float) -> str:
    """Write Unix seconds as Kubernetes' ``MicroTime``: ``2026-01-31T12:00:00.250000Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds_of(text: str | None) -> float | None:
    """Read either as Unix seconds; None for none.

    Raises:
        ValueError: the text is no time.
    """
    return datetime.fromisoformat(text).timestamp() if text else None
