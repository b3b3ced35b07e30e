"""Requests by themselves: rows of the history and the stream, words of a wait and of a status."""

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


def request(time, seconds=1.0, id=""):
    return {"id": id, "key": "a/m", "time": time, "seconds": seconds}


@pytest.mark.parametrize(
    ("history", "stream", "rows"),
    [
        ([request(1, id="r1"), request(1, id="r2")], [request(1, id="r2")], 2),
        # a model's own key sees no ids
        ([request(1), request(2), request(2, seconds=0.5)], [request(2), request(3)], 4),
    ],
)
def test_a_request_of_the_history_and_of_the_stream_is_one_row(call, history, stream, rows):
    merged = call("feed.js", "m.mergedRequests(...argument)", [history, stream])
    assert len(merged) == rows
    assert all(row in merged for row in history + stream)
