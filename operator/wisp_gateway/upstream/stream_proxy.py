"""Pass a pod's answer to its client: event streams line by line as they arrive, other bodies when complete.

Bytes are not parsed; a partial line waits for its end. An unfinished stream ends in an error event, and any
other unfinished answer is a 502, so that a truncated one never looks like success.
"""

from __future__ import annotations

import asyncio
import re

from wisp_gateway.errors import EndpointLost, TooMuchHeld, UpstreamFailed
from wisp_gateway.inbound import dialect, sse
from wisp_gateway.inbound.client import Client
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.upstream import usage_report
from wisp_gateway.upstream.backlog import Backlog
from wisp_gateway.upstream.connection import Answer
from wisp_gateway.upstream.pool import answer_headers

MAX_PARTIAL_LINE_BYTES = 64 * 1024
_NEWLINE = ord("\n")
# Nine digits: a pod's number goes into metrics and rates, where one of hundreds overflows a float.
_COMPLETION_TOKENS = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,9})\b')


class StreamProxy:
    """One answer on its way from a pod to a client.

    Args:
        limit_bytes: largest answer that is not streamed; a stream has no limit.
    """

    def __init__(self, client: Client, answer: Answer, state: ModelState, limit_bytes: int) -> None:
        self._client = client
        self._answer = answer
        self._state = state
        self._limit_bytes = limit_bytes
        self._backlog = Backlog(client, answer)
        self._send_chunk = client.protocol.send_chunk
        self._is_refused = False
        self._body = bytearray()
        self._partial_line = b""
        self._sent_bytes = 0
        self._count = state.begin_answer()

    async def run(self, metrics: Metrics) -> None:
        """Pass on the answer until its end.

        Raises:
            UpstreamFailed: the pod did not finish it, or it is over the limit.
        """
        try:
            if self._answer.status == 200 and self._answer.header(b"content-type").startswith(sse.MEDIA_TYPE):
                await self._stream()
            else:
                await self._collect()
        finally:
            metrics.sent.add(self._sent_bytes, self._state.model.key)
            self._state.end_answer(self._count)

    async def _stream(self) -> None:
        protocol = self._client.protocol
        await self._client.begin_stream(answer_headers(self._answer.headers))
        protocol.on_writable = self._backlog.flush
        try:
            self._answer.attach(self._pass_event)
            await self._wait_finished()
            await self._backlog.emptied()
        finally:
            protocol.on_writable = None
            self._backlog.close()
            self._client.streamed_tokens = self._count.tokens
        await self._client.end_stream(self._take_usage())

    def _take_usage(self) -> bytes:
        """Take the pod's report from the end of the stream; return what is the client's."""
        last = self._partial_line
        if not last.startswith(usage_report.COMMENT):
            return last
        self._record_usage(last.removeprefix(usage_report.COMMENT))
        return b""

    def _record_usage(self, report: bytes) -> None:
        self._client.usage = usage_report.parse(report, self._answer.sent_s - self._client.entered_s)

    def _pass_event(self, chunk: bytes) -> None:
        """Pass on a chunk; called from the pod's socket. This is the entire cost of a token."""
        if self._partial_line or chunk[-1] != _NEWLINE:
            chunk = self._complete_lines(chunk)
        self._sent_bytes += len(chunk)
        self._count.tokens += chunk.count(b"\n\n")
        if self._backlog.is_full or not self._send_chunk(chunk):
            self._backlog.add(chunk)

    def _complete_lines(self, chunk: bytes) -> bytes:
        """Return the complete lines and keep the rest, so that a pod that dies leaves no partial event."""
        text = self._partial_line + chunk
        end = text.rfind(b"\n") + 1
        if len(text) - end >= MAX_PARTIAL_LINE_BYTES:
            end = len(text)
        self._partial_line = text[end:]
        return text[:end]

    async def _collect(self) -> None:
        self._answer.attach(self._buffer)
        await self._wait_finished()
        self._check_size()
        body = bytes(self._body)
        self._sent_bytes = len(body)
        self._record_usage(self._answer.header(usage_report.HEADER))
        self._count.tokens += sum(int(count) for count in _COMPLETION_TOKENS.findall(body[-4096:])[-1:])
        if self._client.is_streaming:
            client = self._client
            event = dialect.answer_event(client.dialect, self._answer.status, body, client.request_id)
            await client.write(event)
            await client.end_stream()
            client.status = self._answer.status
        else:
            await self._client.reply(self._answer.status, body, answer_headers(self._answer.headers))

    def _buffer(self, chunk: bytes) -> None:
        self._body += chunk
        self._is_refused = self._is_refused or not self._client.held.take(len(chunk))
        if self._is_refused or len(self._body) > self._limit_bytes:
            self._answer.abort()

    async def _wait_finished(self) -> None:
        try:
            await asyncio.shield(self._answer.finished)
        except EndpointLost as failure:
            self._check_size()
            raise UpstreamFailed(
                "The pod stopped in the middle of its answer, which is incomplete. Send the request again."
            ) from failure

    def _check_size(self) -> None:
        is_too_long = len(self._body) > self._limit_bytes
        if is_too_long or self._is_refused:
            self._record_usage(self._answer.header(usage_report.HEADER))  # the pod has computed it
        if is_too_long:
            raise UpstreamFailed(f"The pod's answer is over {self._limit_bytes} bytes (--max-answer-bytes).")
        if self._is_refused:
            raise TooMuchHeld(
                "The gateway holds too many unsent answers (--max-held-bytes).", retry_after_s=1
            )
