"""Run sequences on the engine and yield the deltas of their answers.

Between the endpoints and the engine: one sequence a choice, one iterator of deltas each, merged for a
request of several choices. Closing an iterator aborts its sequence; so does a stop string.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

from wisp_runtime.engine.transport.client import Engine
from wisp_runtime.engine.transport.messages import Submit, TokenEvent
from wisp_runtime.errors import EngineDied
from wisp_runtime.server.answers.parser import AnswerParser
from wisp_runtime.server.answers.parts import AnswerDelta
from wisp_runtime.server.api.errors import (
    QUEUE_RETRY_S,
    bad_request,
    engine_died,
    engine_failed,
    overloaded,
    reads_too_slowly,
    unavailable,
)
from wisp_runtime.server.api.logprobs import PromptReport
from wisp_runtime.server.error_budget import ErrorBudget
from wisp_runtime.server.http import usage_report
from wisp_runtime.server.metrics import RequestTimer, Telemetry
from wisp_runtime.server.text.deltas import TextDeltas
from wisp_runtime.server.text.detokenizer import Detokenizer
from wisp_runtime.server.text.stop import StopFinder, StopStrings
from wisp_runtime.server.text.tokenizer import ModelTokenizer

MAX_BACKLOG = 1 << 18  # of deltas of a request that its client has not taken yet
FAILURES = frozenset({"refused", "error", "overloaded", "expired", "abort"})
"""Ends in the engine that bring no answer."""

log = logging.getLogger(__name__)


@dataclass
class Choice:
    """One choice of a response: its sequence on the engine, and token counts so far.

    Attributes:
        submit: request of its sequence.
        stops: strings that end it.
        parser: parser of its text.
        shown_ids: special tokens whose text is shown, or read by the parser.
        report: report of the log-probabilities of its prompt, or None.
        is_scored_only: whether its prompt alone is of interest: the token that is generated is dropped.
        total_logprob: sum of the log-probabilities of its tokens, where they are reported.
        timer: timer of its sequence, once that has begun.
    """

    submit: Submit
    stops: StopStrings
    parser: AnswerParser = field(default_factory=AnswerParser)
    shown_ids: frozenset[int] = frozenset()
    report: PromptReport | None = None
    is_scored_only: bool = False
    cached_tokens: int = 0
    generated_tokens: int = 0
    total_logprob: float = 0.0
    timer: RequestTimer | None = None

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of its tokens, by which the best of several is chosen."""
        return self.total_logprob / max(1, self.generated_tokens)


class Generator:
    """Turns choices into answer deltas; one per server."""

    def __init__(
        self, engine: Engine, tokenizer: ModelTokenizer, telemetry: Telemetry, budget: ErrorBudget
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._telemetry = telemetry
        self._budget = budget
        self._running: set[str] = set()

    @property
    def has_running(self) -> bool:
        """True while a sequence waits for tokens."""
        return bool(self._running)

    def abort_all(self) -> None:
        """Abort every running sequence; its response ends with the error ``server_stopping``."""
        for request_id in self._running:
            self._engine.abort(request_id)

    async def deltas(self, choice: Choice) -> AsyncGenerator[AnswerDelta, None]:
        """Yield the deltas of one choice; the last has ``finish`` set.

        Raises:
            ApiError: the engine failed, or the server is stopping.
        """
        submit, tokenizer = choice.submit, self._tokenizer
        hidden_ids = tokenizer.special_ids - choice.shown_ids
        detokenizer = Detokenizer(tokenizer.decode, submit.prompt, hidden_ids)
        text = TextDeltas(
            detokenizer,
            StopFinder(choice.stops),
            min_tokens=submit.sampling.min_tokens,
            shows_end=choice.stops.is_shown,
        )
        async with self._running_request(submit) as (events, timer):
            choice.timer = timer
            async for event in events:
                if choice.report is not None:
                    choice.report.add(event.prompt_logprobs)
                if event.token is None and event.finish is None:
                    continue
                if choice.is_scored_only and event.token is not None:
                    event = event._replace(token=None, finish="length", logprobs=None)
                self._account(choice, event, timer)
                timer.token(time.monotonic(), event)
                delta = choice.parser.push(text.push(event))
                if delta.finish is not None:
                    timer.finish(time.monotonic(), _reason(delta), choice.generated_tokens)
                yield delta
                if delta.finish is not None:
                    return

    async def pooled(self, submit: Submit) -> bytes:
        """Return the vector that the prompt of ``submit`` is reduced to, float32 numbers.

        Raises:
            ApiError: errors of :meth:`deltas`.
        """
        async with self._running_request(submit) as (events, timer):
            async for event in events:
                self._raise_failure(event, timer)
                if event.pooled is not None:
                    timer.finish(time.monotonic(), "stop", 0)
                    usage_report.current().add_pooled(len(submit.prompt), event.cached_tokens, timer)
                    return event.pooled
            raise engine_failed("The engine ended a request for a vector without one.")

    @asynccontextmanager
    async def _running_request(
        self, submit: Submit
    ) -> AsyncIterator[tuple[AsyncGenerator[TokenEvent, None], RequestTimer]]:
        """Run a request: its events, and its timer; leaving ends it.

        Raises:
            ApiError: the engine ended under it.
        """
        timer = self._telemetry.start_timer(len(submit.prompt), submit.max_tokens)
        self._running.add(submit.request_id)
        try:
            async with aclosing(self._engine.submit(submit)) as events:
                yield events, timer
        except EngineDied as error:
            timer.fail("error")
            log.error("the engine ended under this request: %s", error.message)
            raise engine_died(f"The engine failed while it answered: {error.message}") from error
        finally:
            self._running.discard(submit.request_id)
            timer.close()

    def _account(self, choice: Choice, event: TokenEvent, timer: RequestTimer) -> None:
        choice.cached_tokens = max(choice.cached_tokens, event.cached_tokens)
        choice.generated_tokens += event.token is not None
        choice.total_logprob += event.logprobs.chosen if event.logprobs is not None else 0.0
        self._raise_failure(event, timer)

    def _raise_failure(self, event: TokenEvent, timer: RequestTimer) -> None:
        """Raise the error of an event that ends its request without an answer."""
        if event.finish in FAILURES:
            timer.fail(event.finish)
        if event.finish == "refused":
            raise bad_request(event.message, code="request_refused")
        if event.finish == "error":
            self._budget.spend(time.monotonic())
            log.error("the engine failed at this request: %s", event.message)
            raise engine_failed(event.message or "The engine failed at this request without saying why.")
        if event.finish == "overloaded":
            raise overloaded()
        if event.finish == "expired":
            raise unavailable(
                "The request waited too long for its turn; try again later, or at another replica.",
                "queue_timeout",
                QUEUE_RETRY_S,
            )
        if event.finish == "abort":
            raise unavailable("The server is stopping; try again.", "server_stopping", 1)

    async def merged(self, choices: Sequence[Choice]) -> AsyncGenerator[tuple[int, AnswerDelta], None]:
        """Yield (index, delta) of several choices as they come, each until its end."""
        for index, choice in enumerate(choices):
            choice.submit = replace(choice.submit, choice=index)
        with usage_report.current().counting(choices):
            if len(choices) == 1 and _backlog(choices[0].submit.max_tokens, choices[0]) <= MAX_BACKLOG:
                async with aclosing(self.deltas(choices[0])) as deltas:
                    async for delta in deltas:
                        yield 0, delta
                self._count(choices)
                return
            async with self._pumps(choices) as queue:
                open_choices = len(choices)
                while open_choices:
                    item = await queue.get()
                    if isinstance(item, BaseException):
                        raise item
                    open_choices -= item[1].finish is not None
                    yield item
            self._count(choices)

    def _count(self, choices: Sequence[Choice]) -> None:
        """Count the prompts of a request that ended: choices of one prompt share it."""
        generated: dict[int, list[int]] = {}
        for choice in choices:
            generated.setdefault(id(choice.submit.prompt), []).append(choice.generated_tokens)
        for counts in generated.values():
            self._telemetry.count_prompt(counts)

    @asynccontextmanager
    async def _pumps(
        self, choices: Sequence[Choice]
    ) -> AsyncGenerator[asyncio.Queue[tuple[int, AnswerDelta] | Exception], None]:
        queue: asyncio.Queue[tuple[int, AnswerDelta] | Exception] = asyncio.Queue()
        tasks = [asyncio.create_task(self._pump(i, choice, queue)) for i, choice in enumerate(choices)]
        try:
            yield queue
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(
        self, index: int, choice: Choice, queue: asyncio.Queue[tuple[int, AnswerDelta] | Exception]
    ) -> None:
        try:
            async with aclosing(self.deltas(choice)) as deltas:
                async for delta in deltas:
                    queue.put_nowait((index, delta))
                    if _backlog(queue.qsize(), choice) > MAX_BACKLOG:
                        raise reads_too_slowly()
        except Exception as error:  # noqa: BLE001 (raised again where the request is awaited)
            queue.put_nowait(error)


def _backlog(deltas: int, choice: Choice) -> int:
    """Return what so many deltas that nobody has taken count; an alternative counts as a delta."""
    return deltas * (1 + (choice.submit.sampling.logprobs or 0))


def _reason(delta: AnswerDelta) -> str:
    """Return why an answer ended, for metrics; clients of OpenAI's API know no ``repetition``."""
    return "repetition" if delta.has_repeated else str(delta.finish)
