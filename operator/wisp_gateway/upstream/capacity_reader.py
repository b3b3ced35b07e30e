"""Read the size of pods' KV caches from their ``/state``: it bounds the record of what they have cached."""

from __future__ import annotations

import asyncio
import json
import time
from weakref import WeakKeyDictionary

from wisp_gateway.errors import EndpointLost
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.pod import Pod
from wisp_gateway.upstream.pool import Pool, request_head
from wisp_gateway.upstream.tokens import Tokens

TIMEOUT_S = 2.0
RETRY_S = 30.0
MAX_AT_ONCE = 16
MAX_TOKENS = 1 << 32


class CapacityReader:
    """Reads once of each pod that has a record, and again of one that became another process."""

    def __init__(self, pool: Pool, tokens: Tokens) -> None:
        self._pool = pool
        self._tokens = tokens
        self._reading: set[asyncio.Task[None]] = set()
        self._not_before_s: WeakKeyDictionary[Pod, float] = WeakKeyDictionary()

    def read(self, state: ModelState) -> None:
        """Begin to read what is not known of a model's pods; called every second."""
        if not state.wants_prompts:
            return
        now_s = time.monotonic()
        for pod in state.pods.values():
            is_wanted = len(pod.record) and not pod.record.is_capacity_known and pod.is_ready
            if is_wanted and now_s >= self._not_before_s.get(pod, 0.0) and len(self._reading) < MAX_AT_ONCE:
                self._not_before_s[pod] = now_s + RETRY_S
                task = asyncio.ensure_future(self._read(state.model.key, pod))
                self._reading.add(task)
                task.add_done_callback(self._reading.discard)

    def close(self) -> None:
        """Stop reading."""
        for task in self._reading:
            task.cancel()

    async def _read(self, model_key: str, pod: Pod) -> None:
        address = pod.endpoint.address
        head = request_head("GET", "/state", address, [], body_bytes=0, own=self._tokens.for_pods(model_key))
        try:
            status, body = await self._pool.fetch(address, head, timeout_s=TIMEOUT_S)
        except EndpointLost:
            return  # an estimate stays
        tokens = cache_tokens(body) if status == 200 else None
        if tokens is not None and pod.endpoint.address == address:
            pod.record.resize(tokens)


def cache_tokens(state: bytes) -> int | None:
    """Return the tokens that a pod's KV cache holds, by its ``/state``; None if that does not say."""
    try:
        ledger = json.loads(state)["ledger"]
        cache_bytes, token_bytes = ledger["kvCacheBytes"], ledger["kvBytesPerToken"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if type(cache_bytes) is not int or type(token_bytes) is not int or not 0 < token_bytes <= cache_bytes:
        return None
    return min(cache_bytes // token_bytes, MAX_TOKENS)
