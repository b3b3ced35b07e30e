"""ASGI application: authenticates, finds the model, hands the request to the proxy; answers the rest."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from wisp_gateway.access import Access, Caller
from wisp_gateway.admission import admit, body_limit, settled
from wisp_gateway.config import Config
from wisp_gateway.errors import GatewayError, Headers, InternalError
from wisp_gateway.inbound import access_log, prompt_text, request_body, request_span, routes
from wisp_gateway.inbound.auth import Keyring, token_of
from wisp_gateway.inbound.byte_budget import ByteBudget
from wisp_gateway.inbound.client import Client, ClientGone, Message, Receive, Send
from wisp_gateway.inbound.cross_origin import AllowedOrigins
from wisp_gateway.inbound.dialect import Dialect
from wisp_gateway.limits import deadline
from wisp_gateway.limits.limiter import Limiter
from wisp_gateway.metrics import Metrics
from wisp_gateway.page import files
from wisp_gateway.reporting import introspection, model_metrics, request_metrics
from wisp_gateway.reporting.feed.control import Control
from wisp_gateway.reporting.feed.endpoints import FeedEndpoints
from wisp_gateway.reporting.feed.feed import Feed
from wisp_gateway.routing.prompt import Prompt, prompt_of, session_of
from wisp_gateway.routing.registry import ModelRegistry
from wisp_gateway.routing.response_ids import tag_of
from wisp_gateway.running_requests import RunningRequests
from wisp_gateway.upstream.proxy import Proxy, Request
from wisp_gateway.upstream.stored_responses import StoredResponses
from wisp_http.log_lines import request_id

if TYPE_CHECKING:
    from wisp_http.spans import Tracer

log = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
_JSON: Headers = [(b"content-type", b"application/json")]
_PROMETHEUS: Headers = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]


class App:
    """The gateway as an ASGI application (HTTP only).

    Args:
        is_synced: True once service discovery has a snapshot; until then ``/readyz`` is 503.
    """

    def __init__(
        self,
        config: Config,
        registry: ModelRegistry,
        proxy: Proxy,
        stored: StoredResponses,
        metrics: Metrics,
        limiter: Limiter,
        is_synced: Callable[[], bool],
        feed: Feed,
        control: Control,
        tracer: Tracer | None = None,
    ) -> None:
        self.is_stopping = False
        self._config = config
        self._registry = registry
        self._proxy = proxy
        self._stored = stored
        self._metrics = metrics
        self._is_synced = is_synced
        self._tracer = tracer
        is_machine = config.directory is not None
        self._access = Access(
            registry,
            Keyring(config.api_keys),
            is_loopback_trusted=is_machine,
            is_outdated=lambda: is_machine and registry.is_operator_away(),
        )
        self._origins = AllowedOrigins(config.allow_origin)
        self._feed = feed
        self._feed_endpoints = FeedEndpoints(registry, feed, control, self._origins)
        self._budget = ByteBudget(config.max_held_bytes)
        self._running = RunningRequests()
        self._limiter = limiter

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request; every error has the shape of its path's dialect."""
        client = Client(scope, receive, send, self._budget)
        request_id.set(client.request_id)
        if self._tracer is not None:
            request_span.begin(self._tracer, client)
        try:
            is_metrics_port = client.port == self._config.metrics_port
            if not is_metrics_port and await self._preflight(client):
                return
            route = routes.find(client.method, client.path, is_metrics_port=is_metrics_port)
            await self._dispatch(client, route)
        except GatewayError as error:
            client.refusal = error
            request_metrics.count_refusal(self._metrics, client, error)
            await client.fail(error)
        except ClientGone:
            client.status = CLIENT_CLOSED_REQUEST
        except Exception:
            log.exception("bug in the gateway")
            client.refusal = InternalError("The gateway failed on this request; its log says why.")
            await client.fail(client.refusal)
        finally:
            client.held.release()
            if client.model_key or client.status >= 400:
                request_metrics.count_request(self._metrics, client)
            access_log.record(client)
            if client.model_key:
                self._feed.record(client)
            request_span.end(client)

    def abort(self) -> None:
        """End every request that still runs, each with a clean error."""
        self._running.abort()

    async def _preflight(self, client: Client) -> bool:
        """Set the headers for a web page; answer its preflight, which has no key, and return True."""
        origin = client.header(b"origin")
        client.own_headers = self._origins.headers(origin)
        asked = (client.header(b"access-control-request-" + part) for part in (b"method", b"headers"))
        headers = self._origins.preflight(client.method, origin, *asked)
        if headers is not None:
            await client.reply(200, b"", headers)
        return headers is not None

    async def _dispatch(self, client: Client, route: routes.Route) -> None:
        match route.action:
            case "generate":
                await self._generate(client, route)
            case "stored":
                await self._serve_stored(client, route)
            case "list":
                await self._list(client, route)
            case "show":
                await self._show(client, route)
            case "livez":
                await self._plain(client, 200, "ok")
            case "readyz":
                await self._readyz(client)
            case "metrics":
                await self._show_metrics(client)
            case "state":
                await self._state(client, route)
            case "page":
                await self._page(client, route)

    async def _generate(self, client: Client, route: routes.Route) -> None:
        caller = self._caller(client)
        self._access.check_before_body(caller)
        request_body.check_media_type(client.header(b"content-type"))
        request_body.check_encoding(client.header(b"content-encoding"))
        timeout_s = deadline.timeout_s(client.header(deadline.HEADER))
        client.key_name, account = caller.key_name, caller.account
        client.held.move_to(account)
        of_key = self._access.max_body_bytes(caller, route.model)
        body = await client.read_body(*body_limit(self._config.max_body_bytes, of_key))
        grant = self._access.model(caller, route.model, body.model(is_named_by_path=route.model is not None))
        state = grant.state
        client.model_key, client.key_name = state.model.key, grant.key.name
        client.charge_model()
        bound_to = tag_of(body.previous_response_id) if client.dialect is Dialect.RESPONSES else None
        is_routed_by_prompt = route.path in routes.CACHED and state.wants_prompts and bound_to is None
        request = Request(
            path=route.path,
            headers=client.headers_with_id(),
            span=client.span,
            body=body.addressable(),
            prompt=_prompt(client, body, account) if is_routed_by_prompt else None,
            is_stream=body.is_stream,
            entered_s=client.entered_s,
            priority=grant.key.priority,
            account=account,
            sequences=body.sequences,
            bound_to=bound_to,
            find_again=lambda: self._access.model(caller, grant.state.model.key, None).state,
        )
        admitted = admit(self._limiter, client, grant.key, route.path, body)
        state.arrive()
        self._metrics.received.add(len(body.raw), state.model.key)
        del body  # not held beside the one that is sent
        with settled(admitted, client, lambda: request.held_s is not None):
            await self._running.run(client, self._proxy.serve(client, state, request), timeout_s)

    async def _serve_stored(self, client: Client, route: routes.Route) -> None:
        caller = self._caller(client)
        self._access.check_before_body(caller)
        timeout_s = deadline.timeout_s(client.header(deadline.HEADER))
        state, pod = self._access.pod(caller, route.model, route.id)
        client.model_key, client.key_name = state.model.key, caller.key_name
        work = self._stored.serve(client, state, pod, route.path, caller.account)
        await self._running.run(client, work, timeout_s)

    async def _list(self, client: Client, route: routes.Route) -> None:
        states = self._access.models(self._caller(client), route.model)
        if _is_anthropic(client):
            document = introspection.anthropic_model_list(self._registry, states)
        else:
            document = introspection.model_list(self._registry, states, self._feed.context_of)
        await client.reply(200, json.dumps(document).encode(), _JSON)

    async def _show(self, client: Client, route: routes.Route) -> None:
        state = self._access.model(self._caller(client), route.model, route.id).state
        if _is_anthropic(client):
            card = introspection.anthropic_model_card(self._registry, state)
        else:
            card = introspection.model_card(self._registry, state, self._feed.context_of)
        await client.reply(200, json.dumps(card).encode(), _JSON)

    async def _plain(self, client: Client, status: int, text: str) -> None:
        await client.reply(status, f"{text}\n".encode(), [(b"content-type", b"text/plain; charset=utf-8")])

    async def _readyz(self, client: Client) -> None:
        """Answer 200 once a snapshot was read, even if its source is away again; 503 while stopping."""
        if self.is_stopping:
            await self._plain(client, 503, "stopping")
        elif not self._is_synced():
            await self._plain(client, 503, "the directory, or the keys of its models, have not been read yet")
        else:
            await self._plain(client, 200, "ok")

    async def _show_metrics(self, client: Client) -> None:
        if client.port != self._config.metrics_port:
            self._access.check_gateway(self._caller(client))
        text = model_metrics.scrape(self._metrics, self._registry, is_synced=self._is_synced())
        await client.reply(200, text, _PROMETHEUS)

    async def _state(self, client: Client, route: routes.Route) -> None:
        def visible_models() -> frozenset[str] | None:
            return self._access.visible_models(self._caller(client))  # asked again: keys may change

        account = self._caller(client).account
        work = self._feed_endpoints.serve(client, route.id, route.model, visible_models, account)
        try:
            await self._running.run(client, work, None)
        except ClientGone:
            if not client.is_streaming:  # a page that closes is the end of its stream
                raise

    async def _page(self, client: Client, route: routes.Route) -> None:
        """Send a file of the page; it shows nothing without the key that it then asks for."""
        headers = (client.header(name) for name in (b"accept-encoding", b"if-none-match"))
        await client.reply(*files.find(route.id).answer(*headers))

    def _caller(self, client: Client) -> Caller:
        token = token_of(client.header(b"authorization"), client.header(b"x-api-key"))
        return self._access.caller(token, client.host)


def _prompt(client: Client, body: request_body.RequestBody, account: str) -> Prompt | None:
    """Return the prompt by which a request is routed; None: it has none."""
    text = prompt_text.prompt_text(body)
    if text is None:
        return None
    named = prompt_text.session_name(client.header, body)
    session = session_of(account, named) if named else None
    return prompt_of(text.parts, prefix=text.prefix, salt=text.salt, session=session)


def _is_anthropic(client: Client) -> bool:
    return client.dialect is Dialect.ANTHROPIC
