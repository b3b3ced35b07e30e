"""Words of a request's row by themselves: its wait, and what its status means."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({}, "–"),  # a gateway of an earlier version
        ({"queueSeconds": None, "isWoken": False}, "–"),
        ({"queueSeconds": 0.34, "isWoken": False}, "340 ms"),
        ({"queueSeconds": 10.94, "isWoken": True}, "10.9 s for a wake"),
        ({"queueSeconds": None, "isWoken": True}, "for a wake"),
    ],
)
def test_a_request_says_how_long_it_waited_and_for_what(call, row, text):
    assert call("views/request_words.js", "m.waitText(argument)", row) == text


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"status": 200}, None),
        ({"status": 429}, "over a limit"),
        ({"status": 429, "limit": "rpm", "code": "rate_limit_exceeded"}, "requests a minute (rpm)"),
        ({"status": 429, "limit": "tpm"}, "tokens a minute (tpm)"),
        ({"status": 429, "limit": "concurrent"}, "requests at once (concurrent)"),
        ({"status": 429, "limit": None, "code": "queue_full"}, "over a limit: queue_full"),
        ({"status": 503, "code": "model_failed"}, "unavailable: model_failed"),
        ({"status": 418, "code": None}, None),
    ],
)
def test_a_refused_request_names_the_limit_or_the_code(call, row, text):
    said = call("views/request_words.js", "m.statusText(argument) ?? null", row)
    assert said is None if text is None else text in said
