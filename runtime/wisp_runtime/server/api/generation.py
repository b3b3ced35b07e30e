"""Run sequences on the engine and follow their text.

Between the endpoints and the engine: one :class:`Sequence` per answer, one iterator of pieces each,
all of them merged for a request of several. Closing an iterator aborts what runs; a stop string found
does the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from wisp_runtime.engine.transport.client import Engine
from wisp_runtime.engine.transport.messages import Submit, TokenEvent
from wisp_runtime.errors import EngineDied
from wisp_runtime.server.api.errors import engine_failed, unavailable
from wisp_runtime.server.error_budget import ErrorBudget
from wisp_runtime.server.metrics import Telemetry
from wisp_runtime.server.text.codec import AnswerText, Piece
from wisp_runtime.server.text.detokenizer import Detokenizer
from wisp_runtime.server.text.stop import StopFinder
from wisp_runtime.server.text.tokenizer import ModelTokenizer


@dataclass
class Answer:
    """One sequence of a request: what was asked of the engine, and what has come of it so far."""

    submit: Submit
    stops: tuple[str, ...]
    cached_tokens: int = 0
    generated_tokens: int = 0


class Generator:
    """Turns answers into pieces of text. One for the whole server."""

    def __init__(
        self, engine: Engine, tokenizer: ModelTokenizer, telemetry: Telemetry, budget: ErrorBudget
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._telemetry = telemetry
        self._budget = budget
        self._running: set[str] = set()

    def abort_all(self) -> None:
        """End every answer; each raises that the server is stopping."""
        for request_id in self._running:
            self._engine.abort(request_id)

    async def pieces(self, answer: Answer) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of one answer; the last has ``finish`` set.

        Raises:
            ApiError: the engine failed, or the server is stopping.
        """
        submit, tokenizer = answer.submit, self._tokenizer
        detokenizer = Detokenizer(tokenizer.decode, submit.prompt, tokenizer.special_ids)
        text = AnswerText(detokenizer, StopFinder(answer.stops))
        watch = self._telemetry.follow(len(submit.prompt))
        self._running.add(submit.request_id)
        try:
            async with aclosing(self._engine.submit(submit)) as events:
                async for event in events:
                    self._account(answer, event)
                    watch.token(time.monotonic())
                    piece = text.take(event)
                    if piece.finish is not None:
                        watch.finish(time.monotonic(), piece.finish, answer.generated_tokens)
                    yield piece
                    if piece.finish is not None:
                        return
        except EngineDied as error:
            raise engine_failed(f"The engine failed while it answered: {error.message}") from error
        finally:
            self._running.discard(submit.request_id)
            watch.close()

    def _account(self, answer: Answer, event: TokenEvent) -> None:
        answer.cached_tokens = max(answer.cached_tokens, event.cached_tokens)
        answer.generated_tokens += event.token is not None
        if event.finish == "error":
            self._budget.spend(time.monotonic())
            raise engine_failed(event.message or "The engine failed at this request without saying why.")
        if event.finish == "abort":
            raise unavailable("The server is stopping; try again.", "server_stopping", 1)

    async def merged(self, answers: Sequence[Answer]) -> AsyncGenerator[tuple[int, Piece], None]:
        """Yield (index, piece) of several answers as they come, each until its end."""
        if len(answers) == 1:
            async with aclosing(self.pieces(answers[0])) as pieces:
                async for piece in pieces:
                    yield 0, piece
            return
        async with self._pumps(answers) as queue:
            open_answers = len(answers)
            while open_answers:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                open_answers -= item[1].finish is not None
                yield item

    @asynccontextmanager
    async def _pumps(
        self, answers: Sequence[Answer]
    ) -> AsyncGenerator[asyncio.Queue[tuple[int, Piece] | Exception], None]:
        queue: asyncio.Queue[tuple[int, Piece] | Exception] = asyncio.Queue()
        tasks = [asyncio.create_task(self._pump(i, answer, queue)) for i, answer in enumerate(answers)]
        try:
            yield queue
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(
        self, index: int, answer: Answer, queue: asyncio.Queue[tuple[int, Piece] | Exception]
    ) -> None:
        try:
            async with aclosing(self.pieces(answer)) as pieces:
                async for piece in pieces:
                    queue.put_nowait((index, piece))
        except Exception as error:  # noqa: BLE001 (raised again where the request is awaited)
            queue.put_nowait(error)
