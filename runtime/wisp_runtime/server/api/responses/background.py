"""A response in the background: it is written whether or not anybody reads it."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import aclosing, suppress

from wisp_runtime.server.api.errors import ApiError, answer_too_long, internal_error
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.respond import MAX_KEPT_CHARS
from wisp_runtime.server.api.responses.answer import Answer
from wisp_runtime.server.api.responses.events import Event, EventLog
from wisp_runtime.server.api.responses.store import ResponseStore, StoredResponse, StoreFull, Turn
from wisp_runtime.server.service import Service

MAX_RUNS = 128
CHARGED_BYTES = 1 << 16  # of further events, after which the store counts them

log = logging.getLogger(__name__)


class BackgroundRun:
    """A response under way, and the task that writes it.

    Counts as an active request of the service, so that a stop waits for it as for others.

    Args:
        service: its server.
        store: store that keeps it.
        answer: the response.
        choice: its sequence.
        stored: the response as the store keeps it.
    """

    def __init__(
        self, service: Service, store: ResponseStore, answer: Answer, choice: Choice, stored: StoredResponse
    ) -> None:
        self._service, self._store = service, store
        self._answer, self._choice, self._stored = answer, choice, stored
        self._log = stored.log = EventLog()
        self._log.add(answer.create())
        self._task: asyncio.Task[None] | None = None
        self._is_too_long = self._is_cancelled = False

    def start(self) -> asyncio.Task[None]:
        """Begin to write.

        Raises:
            StoreFull: responses under way take all that may be kept.
        """
        self._stored.other_bytes = self._log.size_bytes  # its first events repeat the request's fields
        self._store.put(self._stored)
        self._service.enter()
        self._task = asyncio.create_task(self._write())
        self._task.add_done_callback(self._end)
        return self._task

    async def cancel(self) -> None:
        """Abort it, unless it has ended, and wait for its end."""
        assert self._task is not None
        if not (self._is_cancelled or self._answer.is_over):
            self._is_cancelled = self._task.cancel()
        await asyncio.wait([self._task])
        await asyncio.sleep(0)  # callbacks of the task run now

    async def _write(self) -> None:
        async with aclosing(self._service.text.generator.merged([self._choice])) as merged:
            async for _, delta in merged:
                self._add(self._answer.push(delta))

    def _add(self, events: list[Event]) -> None:
        """Add events, and check the bounds of a response that goes on."""
        self._log.add(events)
        if self._answer.is_over:
            return
        if self._answer.kept_chars > MAX_KEPT_CHARS:
            raise answer_too_long(MAX_KEPT_CHARS)
        if self._log.size_bytes - self._stored.other_bytes > CHARGED_BYTES:
            self._charge()

    def _charge(self) -> None:
        self._stored.other_bytes = self._log.size_bytes
        try:
            self._store.put(self._stored)
        except StoreFull as error:
            self._is_too_long = True
            raise ApiError(
                503, "Responses in the background take all that this server keeps; create fewer at a time.",
                code="response_store_full",
            ) from error  # fmt: skip

    def _end(self, task: asyncio.Task[None]) -> None:
        """Add the last events, unless they have been sent, and keep the response as it is now."""
        error = None if task.cancelled() else task.exception()
        failure = None if error is None else _api_error(error)
        if not self._answer.is_over:
            self._log.add(self._answer.cancel() if failure is None else self._answer.fail(failure))
        stored = self._stored
        if self._is_too_long:
            self._answer.forget()
            stored.log = None
        body = self._answer.json()
        stored.body, stored.output, stored.is_over = (lambda: body), Turn(tuple(self._answer.items())), True
        stored.other_bytes = sys.getsizeof(body) + (stored.log.size_bytes if stored.log else 0)
        is_kept = self._store.get(stored.id, stored.account) is stored  # unless it was deleted meanwhile
        if is_kept or self._is_too_long:
            with suppress(StoreFull):
                self._store.put(stored)
        self._log.close()
        self._service.leave()


def _api_error(error: BaseException) -> ApiError:
    if isinstance(error, ApiError):
        return error
    log.error("a response in the background ended with a bug of ours", exc_info=error)
    return internal_error(error if isinstance(error, Exception) else RuntimeError(str(error)))
