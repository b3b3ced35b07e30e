"""The size of a pod's KV cache as its ``/state`` says it."""

from __future__ import annotations

import json

import pytest

from wisp_gateway.upstream.capacity_reader import MAX_TOKENS, cache_tokens


@pytest.mark.parametrize(
    ("ledger", "tokens"),
    [
        ({"kvCacheBytes": 67_092_480, "kvBytesPerToken": 46_080}, 1456),
        ({"kvCacheBytes": 2**90, "kvBytesPerToken": 1}, MAX_TOKENS),
        ({"kvCacheBytes": 0, "kvBytesPerToken": 46_080}, None),  # not loaded yet
        ({"kvCacheBytes": 5, "kvBytesPerToken": 0}, None),
        ({"kvCacheBytes": "5", "kvBytesPerToken": 1}, None),
        ({"kvCacheBytes": 5.5, "kvBytesPerToken": 1}, None),
        ({"kvCacheBytes": True, "kvBytesPerToken": True}, None),
        ({"kvCacheBytes": 5}, None),
        (None, None),
    ],
)
def test_the_cache_in_tokens_or_nothing(ledger, tokens):
    assert cache_tokens(json.dumps({"ledger": ledger}).encode()) == tokens


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"[" * 60_000, b"\xff", b'{"ledger": 5}'])
def test_what_is_no_state_says_nothing(body):
    assert cache_tokens(body) is None
