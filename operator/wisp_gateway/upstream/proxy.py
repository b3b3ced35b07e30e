"""One request's way: a place, a pod, the first byte, and again elsewhere if the pod dies before it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from wisp_gateway.errors import EndpointLost, Headers, UpstreamFailed
from wisp_gateway.inbound import sse
from wisp_gateway.inbound.client import Client
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.model_state import Desk
from wisp_gateway.routing.registry import Fleet, Lease
from wisp_gateway.upstream.connection import Answer
from wisp_gateway.upstream.pool import Pool, request_head
from wisp_gateway.upstream.stream_proxy import Splice

log = logging.getLogger(__name__)

# A request under which three pods died is the likely cause.
MOST_RETRIES = 2


@dataclass
class Request:
    """What is sent to the pod, and what has happened to it so far."""

    path: str
    headers: Headers
    body: bytes
    key: bytes | None
    is_stream: bool
    entered_s: float
    deaths: int = 0
    held_s: float | None = None


class Relay:
    """Serves requests from the pods of a fleet."""

    def __init__(self, fleet: Fleet, pool: Pool, metrics: Metrics, max_answer_bytes: int) -> None:
        self._fleet = fleet
        self._pool = pool
        self._metrics = metrics
        self._max_answer_bytes = max_answer_bytes

    async def serve(self, client: Client, desk: Desk, request: Request) -> None:
        """Answer ``request`` on ``client``; to be cancelled when the client leaves.

        Raises:
            GatewayError: no answer, or only a part of one.
        """
        async with _heartbeats(client, desk, request):
            lease, answer = await self._open(desk, request)
        try:
            self._metrics.first_byte.observe(time.monotonic() - request.entered_s, desk.model.key)
            await Splice(client, answer, desk, self._max_answer_bytes).run(self._metrics)
        finally:
            answer.abort()
            lease.release()

    async def _open(self, desk: Desk, request: Request) -> tuple[Lease, Answer]:
        """Get a place and the first byte of an answer, from another pod if one dies before that."""
        while True:
            lease = await self._place(desk, request)
            try:
                answer = await self._ask(lease, request)
            except EndpointLost as lost:
                self._fleet.doubt(desk, lease)
                self._count_death(desk, request, lost)
            except BaseException:
                lease.release()
                raise
            else:
                return lease, answer

    async def _place(self, desk: Desk, request: Request) -> Lease:
        is_retry = request.held_s is not None
        lease = await self._fleet.place(desk, request.key, entered_s=request.entered_s, is_retry=is_retry)
        if request.held_s is None:
            request.held_s = time.monotonic() - request.entered_s
            self._metrics.hold.observe(request.held_s, desk.model.key)
        return lease

    async def _ask(self, lease: Lease, request: Request) -> Answer:
        address = lease.endpoint.address
        head = request_head("POST", request.path, address, request.headers, body_bytes=len(request.body))
        answer = await self._pool.exchange(address, head, request.body)
        if answer.status == 503 and request.deaths < MOST_RETRIES:
            answer.abort()
            raise EndpointLost(f"{address}: it answered 503", was_sent=True)
        return answer

    def _count_death(self, desk: Desk, request: Request, lost: EndpointLost) -> None:
        """Allow another attempt, unless pods keep dying under this request or its time is over."""
        log.warning("%s: %s before the first byte", desk.model.key, lost)
        request.deaths += lost.was_sent
        if request.deaths > MOST_RETRIES:
            raise UpstreamFailed(
                f"{request.deaths} pods of model {desk.model.key} ended while they worked on this request; "
                "it is not tried again."
            )
        if time.monotonic() - request.entered_s > desk.model.cold_start.max_wait_s and lost.was_sent:
            raise UpstreamFailed(
                f"The pod of model {desk.model.key} ended before it answered, later than coldStart.maxWait."
            )
        self._metrics.retries.add(1, desk.model.key)


@asynccontextmanager
async def _heartbeats(client: Client, desk: Desk, request: Request) -> AsyncIterator[None]:
    """Keep a streaming client's connection alive while the block runs; the first beat sends the 200."""
    if not request.is_stream:
        yield
        return
    beating = asyncio.ensure_future(_beat(client, desk))
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])


async def _beat(client: Client, desk: Desk) -> None:
    while True:
        await asyncio.sleep(desk.model.cold_start.heartbeat_s)
        await client.begin_stream(sse.HEADERS)
        phase = f", {desk.model.phase}" if desk.model.phase else ""
        await client.write(sse.comment(f"{desk.model.key}: {desk.state}{phase}"))
