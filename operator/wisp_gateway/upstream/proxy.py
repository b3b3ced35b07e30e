"""Reverse proxy: acquire a slot, send the request, retry at another pod if one dies before the first byte."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wisp_gateway.discovery.key_digests import NORMAL
from wisp_gateway.errors import (
    EndpointFull,
    EndpointLost,
    EndpointRefused,
    Headers,
    PodsRefused,
    UpstreamFailed,
)
from wisp_gateway.inbound import sse
from wisp_gateway.inbound.client import Client
from wisp_gateway.inbound.request_body import AddressableBody
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.pod import Pod
from wisp_gateway.routing.prompt import Prompt
from wisp_gateway.routing.registry import ModelRegistry, Slot
from wisp_gateway.upstream import usage_report
from wisp_gateway.upstream.connection import Answer
from wisp_gateway.upstream.pool import Pool, request_head
from wisp_gateway.upstream.stream_proxy import StreamProxy
from wisp_gateway.upstream.suspects import Suspects
from wisp_gateway.upstream.tokens import Tokens
from wisp_gateway.upstream.traced import TracedTry
from wisp_http.trace_context import context_of

if TYPE_CHECKING:
    from wisp_http.spans import Span

log = logging.getLogger(__name__)

# A second pod that dies under a request is the request's doing: a third would die as well.
MAX_DEATHS = 1
# A pod that drains answers 503 and does not die; another may take the request.
MAX_REFUSALS = 2
MIN_REFUSED_RETRY_S = 2
# Header of a pod's answer to what its engine died under: an announcement of its end, no answer.
DIED = b"x-wisp-died"
TAG_HEADER = b"x-wisp-pod-tag"
# A pod of which other gateways, or other clients, have taken all places gets nothing for this long. A request
# for several answers may be too large for any pod: it waits alone, and gets its 429 in the end.
OVERLOAD_PAUSE_S = 1.0
MAX_OVERLOADS = 10
# Of one model: its owner sets the interval, and a gateway has one processor for all.
MAX_BEATS_PER_S = 100


@dataclass
class Request:
    """A request to a pod, and its retries so far.

    Args:
        prompt: its prompt, if that decides its pod.
        span: span that a try at a pod is a part of, or None.
        bound_to: tag of the pod that stores the response that it continues, or None.
        find_again: finder of its model as it is now, which raises what a new request would get.
    """

    path: str
    headers: Headers
    body: AddressableBody
    prompt: Prompt | None
    is_stream: bool
    entered_s: float
    find_again: Callable[[], ModelState]
    priority: str = NORMAL
    account: str = ""
    sequences: int = 1
    bound_to: str | None = None
    span: Span | None = None
    deaths: int = 0
    refusals: int = 0
    overloads: int = 0
    held_s: float | None = None
    waited_for_wake: bool | None = None  # None: not admitted

    @property
    def trace(self) -> str:
        """The ``traceparent`` of its span, or of the client's; empty if neither is kept."""
        return context_of(self.headers if self.span is None else self.span.headers)

    def admit(self, state: ModelState) -> None:
        """Record that it has a slot, or waits for one: whether for a wake, the first time."""
        if self.waited_for_wake is None:
            self.waited_for_wake = not state.ready


class Proxy:
    """Serves clients' requests from the pods of the registry."""

    def __init__(
        self, registry: ModelRegistry, pool: Pool, metrics: Metrics, tokens: Tokens, max_answer_bytes: int
    ) -> None:
        self._registry = registry
        self._pool = pool
        self._metrics = metrics
        self._tokens = tokens
        self._max_answer_bytes = max_answer_bytes
        self._suspects = Suspects()

    async def serve(self, client: Client, state: ModelState, request: Request) -> None:
        """Answer ``request`` on ``client``; to be cancelled when the client disconnects.

        Raises:
            GatewayError: no answer, or only a part of one.
        """
        async with _heartbeats(client, state, request):
            try:
                state, slot, answer = await self._open(state, request)
            finally:
                client.queue_s, client.waited_for_wake = request.held_s, request.waited_for_wake
                client.wake_trace = state.wake_trace if client.waited_for_wake else ""
        answer.finished.add_done_callback(lambda _: slot.release())  # with the last token, read or not
        request.body.drop()  # no retry from here on
        if answer.is_request_sent:
            client.held.release()
        try:
            self._metrics.first_byte.observe(time.monotonic() - request.entered_s, state.model.key)
            await StreamProxy(client, answer, state, self._max_answer_bytes).run(self._metrics)
        finally:
            answer.abort()
            slot.release()

    async def _open(self, state: ModelState, request: Request) -> tuple[ModelState, Slot, Answer]:
        """Return a slot and an answer that has its first byte, from another pod if one dies before that.

        Raises:
            GatewayError: there is none; of a model that was deleted meanwhile at once. One that was created
                again has a routing state of its own, which is returned.
        """
        while True:
            if state.is_closed:  # deleted since it was found
                state = request.find_again()
            try:
                if not request.deaths:
                    return state, *await self._attempt(state, request)
                wait_s = request.entered_s + state.model.cold_start.max_wait_s - time.monotonic()
                async with self._suspects.alone(state, wait_s) as on_sending:
                    return state, *await self._attempt(state, request, on_sending)
            except EndpointLost as failure:
                self._record_failure(state, request, failure)
                if isinstance(failure, EndpointFull) and request.sequences > 1:
                    await asyncio.sleep(OVERLOAD_PAUSE_S)
                state = request.find_again()

    async def _attempt(
        self, state: ModelState, request: Request, on_sending: Callable[[], None] | None = None
    ) -> tuple[Slot, Answer]:
        slot = await self._acquire_slot(state, request)
        try:
            if on_sending is not None:
                on_sending()
            answer = await self._send(state, slot, request)
            slot.prompt_computed()
            return slot, answer
        except EndpointFull:
            slot.release()  # the pod answers
            raise
        except EndpointLost:
            self._registry.mark_unhealthy(state, slot)
            raise
        except BaseException:
            slot.release()
            raise

    async def _acquire_slot(self, state: ModelState, request: Request) -> Slot:
        is_retry = request.held_s is not None
        slot = await self._registry.acquire_slot(
            state,
            request.prompt,
            entered_s=request.entered_s,
            is_retry=is_retry,
            sequences=request.sequences,
            priority=request.priority,
            account=request.account,
            trace="" if state.ready else request.trace,
            bound_to=request.bound_to,
            on_admit=lambda: request.admit(state),
        )
        if request.held_s is None:
            request.held_s = time.monotonic() - request.entered_s
            self._metrics.hold.observe(request.held_s, state.model.key)
        return slot

    async def _send(self, state: ModelState, slot: Slot, request: Request) -> Answer:
        """Ask a pod by a name that it knows: after a change of ``servedName`` pods of both run."""
        for name in slot.pod.names_of(state.model):
            answer = await self._ask(state, slot, request, request.body.named(name))
            if answer.status != 404:
                return answer
            answer.abort()
            slot.pod.record_unknown(name)
        slot.pod.forget_names()
        raise EndpointRefused(f"{slot.endpoint.address}: it does not serve this model")

    async def _ask(self, state: ModelState, slot: Slot, request: Request, body: bytes) -> Answer:
        address = slot.endpoint.address
        own = pod_headers(self._tokens, state, slot.pod, request.account)
        attempt = TracedTry(request.span, address)
        own += [(b"x-wisp-priority", request.priority.encode()), *attempt.headers]
        head = request_head("POST", request.path, address, request.headers, body_bytes=len(body), own=own)
        try:
            answer = await self._pool.exchange(address, head, body)
        except BaseException as error:
            attempt.fail(error)
            raise
        attempt.follow(answer)
        if answer.header(DIED):
            answer.abort()
            raise EndpointLost(f"{address}: its engine died", was_sent=True)
        if answer.status == 401:  # a pod asks for nothing but the gateway's own token
            answer.abort()
            raise EndpointRefused(f"{address}: it does not accept this gateway's token")
        if answer.status == 429 and request.overloads < MAX_OVERLOADS:
            answer.abort()
            if request.sequences == 1:  # else it proves nothing about others' requests
                slot.pod.pause(OVERLOAD_PAUSE_S)
            raise EndpointFull(f"{address}: as many requests as it takes wait there already")
        if answer.status == 503 and request.refusals < MAX_REFUSALS:
            answer.abort()
            raise EndpointRefused(f"{address}: it answered 503")
        return answer

    def _record_failure(self, state: ModelState, request: Request, failure: EndpointLost) -> None:
        """Count a failure; raise if the request has no retry or no time left."""
        log.warning("%s: %s before the first byte", state.model.key, failure)
        is_late = time.monotonic() - request.entered_s > state.model.cold_start.max_wait_s
        if isinstance(failure, EndpointFull):
            request.overloads += 1
            is_late = False  # no pod ended: its wait does, in the queue
        elif isinstance(failure, EndpointRefused):
            request.refusals += 1
        else:
            request.deaths += failure.was_sent
        if request.deaths > MAX_DEATHS:
            raise UpstreamFailed(
                f"{request.deaths} pods of model {state.model.key} ended "
                "while they worked on this request; it is not tried again."
            )
        if request.refusals > MAX_REFUSALS:
            raise PodsRefused(
                f"{request.refusals} times a pod of model {state.model.key} did not take this request, as "
                "while tokens or addresses change. Retry; if it stays so, the gateway's log says why.",
                retry_after_s=max(MIN_REFUSED_RETRY_S, state.retry_after_s),
            )
        if is_late and failure.was_sent:
            raise UpstreamFailed(
                f"The pod of model {state.model.key} ended before it answered, later than coldStart.maxWait."
            )
        self._metrics.retries.add(1, state.model.key)


def pod_headers(tokens: Tokens, state: ModelState, pod: Pod, account: str) -> Headers:
    """Return the gateway's own headers of a request to a pod."""
    key = state.model.key
    tag = (TAG_HEADER, pod.tag.encode())
    return [*tokens.for_pods(key), *tokens.for_account(key, account), tag, usage_report.ASK]


@asynccontextmanager
async def _heartbeats(client: Client, state: ModelState, request: Request) -> AsyncIterator[None]:
    """Keep a streaming client's connection alive while the block runs; the first beat sends the 200."""
    if not request.is_stream:
        yield
        return
    beating = asyncio.ensure_future(_beat(client, state))
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])


def beat_interval_s(heartbeat_s: float, requests: int) -> float:
    """Return the time between the heartbeats of one of a model's requests: all together have a bound."""
    return max(heartbeat_s, requests / MAX_BEATS_PER_S)


async def _beat(client: Client, state: ModelState) -> None:
    while True:
        await asyncio.sleep(
            beat_interval_s(state.model.cold_start.heartbeat_s, len(state.queue) + state.running)
        )
        await client.begin_stream(sse.HEADERS)
        await client.write(sse.comment(state.activity))
