"""Headers of limits as clients of both APIs parse them."""

from __future__ import annotations

import pytest

from wisp_gateway.limits.headers import (
    ANTHROPIC_NAMES,
    OPENAI_NAMES,
    anthropic_headers,
    duration,
    openai_headers,
)
from wisp_gateway.limits.limiter import Quota

QUOTAS = {"requests": Quota(60, 59, 1.0), "tokens": Quota(150_000, 149_984, 6.4)}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0ms"),
        (0.0061, "7ms"),
        (0.9999, "1000ms"),
        (1.0, "1s"),
        (1.2, "2s"),
        (59.5, "1m0s"),
        (360.0, "6m0s"),
    ],
)
def test_a_reset_is_a_duration_rounded_up(seconds, text):
    assert duration(seconds) == text


def test_openais_headers():
    assert openai_headers(QUOTAS) == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"1s"),
        (b"x-ratelimit-limit-tokens", b"150000"),
        (b"x-ratelimit-remaining-tokens", b"149984"),
        (b"x-ratelimit-reset-tokens", b"7s"),
    ]
    assert [name.decode() for name, _ in openai_headers(QUOTAS)] == list(OPENAI_NAMES)


def test_anthropics_headers():
    headers = anthropic_headers(QUOTAS, wall_s=1_767_225_600.0)
    assert headers[:3] == [
        (b"anthropic-ratelimit-requests-limit", b"60"),
        (b"anthropic-ratelimit-requests-remaining", b"59"),
        (b"anthropic-ratelimit-requests-reset", b"2026-01-01T00:00:01Z"),
    ]
    assert [name.decode() for name, _ in headers] == list(ANTHROPIC_NAMES)
