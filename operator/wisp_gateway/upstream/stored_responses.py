"""Requests for a response that a pod stores: passed to that pod at once, without a slot or a retry."""

from __future__ import annotations

import re

from wisp_gateway.errors import EndpointLost, PodUnreachable
from wisp_gateway.inbound.client import Client
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.pod import Pod
from wisp_gateway.upstream.connection import Answer
from wisp_gateway.upstream.pool import Pool, request_head
from wisp_gateway.upstream.proxy import DIED, pod_headers
from wisp_gateway.upstream.stream_proxy import StreamProxy
from wisp_gateway.upstream.tokens import Tokens

RETRY_S = 1
_QUERY = re.compile(rb"[!-~]{1,2048}")


class StoredResponses:
    """Serves GET, DELETE and cancel of stored responses."""

    def __init__(self, pool: Pool, metrics: Metrics, tokens: Tokens, max_answer_bytes: int) -> None:
        self._pool = pool
        self._metrics = metrics
        self._tokens = tokens
        self._max_answer_bytes = max_answer_bytes

    async def serve(self, client: Client, state: ModelState, pod: Pod, path: str, account: str) -> None:
        """Pass the client's request to ``path`` of a pod; to be cancelled when the client disconnects.

        Raises:
            PodUnreachable: no answer.
            UpstreamFailed: a part of one.
        """
        try:
            answer = await self._ask(client, state, pod, path, account)
        except EndpointLost as error:
            raise PodUnreachable(
                f"The pod of model {state.model.key} that stores this response does not answer now. Retry.",
                retry_after_s=RETRY_S,
            ) from error
        try:
            await StreamProxy(client, answer, state, self._max_answer_bytes).run(self._metrics)
        finally:
            answer.abort()

    async def _ask(self, client: Client, state: ModelState, pod: Pod, path: str, account: str) -> Answer:
        address = pod.endpoint.address
        target = f"{path}?{client.query.decode()}" if _QUERY.fullmatch(client.query) else path
        own = pod_headers(self._tokens, state, pod, account)
        head = request_head(client.method, target, address, client.headers_with_id(), body_bytes=0, own=own)
        answer = await self._pool.exchange(address, head)
        if answer.header(DIED) or answer.status == 401:  # a pod asks for nothing but the gateway's own token
            answer.abort()
            raise EndpointLost(f"{address}: it refused", was_sent=True)
        return answer
