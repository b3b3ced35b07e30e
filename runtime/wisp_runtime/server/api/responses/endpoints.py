"""Endpoints of the Responses API."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from wisp_runtime.server.api.errors import ApiError, answer_too_long, bad_request
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.logprobs import to_json
from wisp_runtime.server.api.respond import MAX_KEPT_CHARS
from wisp_runtime.server.api.responses.answer import Answer
from wisp_runtime.server.api.responses.background import MAX_RUNS, BackgroundRun
from wisp_runtime.server.api.responses.output import Output
from wisp_runtime.server.api.responses.preparation import counted, prepared
from wisp_runtime.server.api.responses.queries import ItemsQuery, StreamQuery, check_include
from wisp_runtime.server.api.responses.resource import account_of, new_response_id, response_head
from wisp_runtime.server.api.responses.store import ResponseStore, StoredResponse, StoreFull, Turn, items_of
from wisp_runtime.server.api.responses.stored_items import input_turn, resolved
from wisp_runtime.server.http.query_string import query_values
from wisp_runtime.server.http.sse import EventStream, unless_client_leaves
from wisp_runtime.server.parsing.body import body_limit, read_body
from wisp_runtime.server.parsing.responses.items import ContentItem
from wisp_runtime.server.parsing.responses.request import ENCRYPTED, LOGPROBS, ResponsesRequest
from wisp_runtime.server.parsing.responses.tools import namespaces_of
from wisp_runtime.server.service import Service

RETRY_S = 5

log = logging.getLogger(__name__)


class ResponsesApi:
    """Creates responses and serves those that are kept.

    Args:
        service: the served model.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = ResponseStore()
        self._runs: dict[str, BackgroundRun] = {}

    async def create(self, http_request: Request) -> Response:
        """Create a response: complete, as a stream, or in the background."""
        service, headers = self._service, http_request.headers
        request, former, given = await self._read(http_request)
        choice = await prepared(service, request, former, given, headers)
        identity = new_response_id(headers)
        head = response_head(request, identity, service.config.name, choice.submit.sampling)
        answer = Answer(head, choice, self._output(request), is_queued=bool(request.background))
        stored = StoredResponse(identity, account_of(headers), (*former, input_turn(given)), answer.json)
        if request.background:
            return self._begin(answer, choice, stored, is_streamed=bool(request.stream))
        kept = stored if request.is_stored else None
        if request.stream:
            return EventStream(self._events(answer, choice, kept))
        await unless_client_leaves(http_request.receive, self._collect(answer, choice, kept))
        return _json(answer.json())

    async def input_tokens(self, http_request: Request) -> Response:
        """Count the tokens of the prompt that a body becomes."""
        request, former, given = await self._read(http_request)
        tokens = await counted(self._service, request, former, given)
        return _json(to_json({"object": "response.input_tokens", "input_tokens": tokens}))

    async def retrieve(self, http_request: Request) -> Response:
        """Respond with a response that is kept, or with its events."""
        stored = self._stored(http_request)
        query = StreamQuery.of(http_request.query_params)
        check_include(query_values(http_request.query_params, "include"))
        if not query.is_stream:
            return _json(stored.body())
        if stored.log is None:
            raise bad_request(
                f"{stored.id!r} has no events any more: only those of responses created with "
                "'background': true are kept. Retrieve it without 'stream'.",
                "stream",
            )
        return EventStream(stored.log.follow(query.starting_after))

    async def cancel(self, http_request: Request) -> Response:
        """Cancel a response in the background. One that has ended stays as it is."""
        stored = self._stored(http_request)
        if stored.log is None:
            raise bad_request(
                f"{stored.id!r} cannot be cancelled: only responses created with 'background': true can. "
                "Close the connection of any other.",
                code="not_in_background",
            )
        if (run := self._runs.get(stored.id)) is not None:
            await run.cancel()
        return _json(stored.body())

    async def delete(self, http_request: Request) -> Response:
        """Forget a response; cancel it first if it is under way."""
        stored = self._stored(http_request)
        self._store.drop(stored.id)
        if (run := self._runs.get(stored.id)) is not None:
            await run.cancel()
        return _json(to_json({"id": stored.id, "object": "response", "deleted": True}))

    async def input_items(self, http_request: Request) -> Response:
        """Respond with a page of the items that led to a response."""
        stored = self._stored(http_request)
        check_include(query_values(http_request.query_params, "include"))
        return _json(ItemsQuery.of(http_request.query_params).page(items_of(stored.turns)))

    async def _read(
        self, http_request: Request
    ) -> tuple[ResponsesRequest, tuple[Turn, ...], list[ContentItem]]:
        """Return a request's body, what was said before it, and its own items."""
        service = self._service
        max_bytes = body_limit(service.info.max_context, service.text.tokenizer.longest_token_chars)
        request = await read_body(http_request, ResponsesRequest, max_bytes)
        account = account_of(http_request.headers)
        return request, self._former(request, account), resolved(request.input, self._store, account)

    def _stored(self, http_request: Request) -> StoredResponse:
        identity = http_request.path_params["id"]
        stored = self._store.get(identity, account_of(http_request.headers))
        if stored is None:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"Response {identity[:80]!r} is not stored here (any more). The server keeps the last ones "
                "until it restarts, unless 'store' is false.",
                code="response_not_found",
            )
        return stored

    def _former(self, request: ResponsesRequest, account: str) -> tuple[Turn, ...]:
        """Return what was said before the request."""
        identity = request.previous_response_id
        if identity is None:
            return ()
        stored = self._store.get(identity, account)
        if stored is None:
            raise bad_request(
                f"Previous response {identity[:80]!r} is not stored here (any more). Send the whole "
                "conversation as 'input'.",
                "previous_response_id",
                "previous_response_not_found",
            )
        if not stored.is_over:
            raise bad_request(
                f"Previous response {identity!r} is still being written: wait for its end, or cancel it.",
                "previous_response_id",
                "previous_response_in_progress",
            )
        return stored.conversation()

    def _output(self, request: ResponsesRequest) -> Output:
        reasoning = request.reasoning
        return Output(
            self._service.text.names if request.includes(LOGPROBS) else None,
            is_summarized=reasoning is not None and reasoning.shown_summary is not None,
            is_encoded=request.includes(ENCRYPTED),
            namespaces=namespaces_of(request.tools or ()),
        )

    def _begin(
        self, answer: Answer, choice: Choice, stored: StoredResponse, *, is_streamed: bool
    ) -> Response:
        """Start a response in the background; respond with it, or with its events."""
        stored.is_over = False
        run = BackgroundRun(self._service, self._store, answer, choice, stored)
        try:
            if len(self._runs) >= MAX_RUNS:
                raise StoreFull
            task = run.start()
        except StoreFull as error:
            raise ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{len(self._runs)} responses are being written in the background; try again later.",
                code="too_many_background_responses",
                headers={"Retry-After": str(RETRY_S)},
            ) from error
        self._runs[stored.id] = run
        task.add_done_callback(lambda _: self._runs.pop(stored.id))
        if is_streamed and stored.log is not None:
            return EventStream(stored.log.follow())
        return _json(answer.json())

    async def _collect(self, answer: Answer, choice: Choice, kept: StoredResponse | None) -> None:
        """Run a response to its end.

        Raises:
            ApiError: it failed, or is too long to be kept until its end.
        """
        async with aclosing(self._service.text.generator.merged([choice])) as merged:
            async for _, delta in merged:
                answer.push(delta)
                if answer.kept_chars > MAX_KEPT_CHARS:
                    raise answer_too_long(MAX_KEPT_CHARS)
        self._keep(answer, kept)

    async def _events(
        self, answer: Answer, choice: Choice, kept: StoredResponse | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of a response; the first ones come with its first token."""
        number, waiting = 0, answer.create()
        try:
            async with aclosing(self._service.text.generator.merged([choice])) as merged:
                async for _, delta in merged:
                    waiting += answer.push(delta)
                    if answer.is_over and not self._keep(answer, kept):
                        waiting[-1] = answer.last_event()
                    for event in waiting:
                        yield event.sse(number)
                        number += 1
                    waiting = []
        except ApiError as error:
            if number == 0:
                raise  # an ordinary error response, which a gateway may try elsewhere
            waiting = answer.fail(error)
            if not self._keep(answer, kept):
                waiting[-1] = answer.last_event()
        for event in waiting:
            yield event.sse(number)
            number += 1

    def _keep(self, answer: Answer, kept: StoredResponse | None) -> bool:
        """Store a response that has ended, if it is to be kept; return False if there is no place for it.

        The answer then says ``"store": false``.
        """
        if kept is None:
            return True
        body = answer.json()
        kept.body, kept.output, kept.other_bytes = (
            (lambda: body),
            Turn(tuple(answer.items())),
            sys.getsizeof(body),
        )
        try:
            self._store.put(kept)
        except StoreFull:
            log.warning("response %s is not kept: there is no place for it", answer.id)
            answer.is_stored = False
        return answer.is_stored


def _json(text: str) -> Response:
    return Response(text.encode(), media_type="application/json")
