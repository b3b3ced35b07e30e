"""Passes a pod's answer to its client: events line by line as they come, anything else as a whole.

Nothing is parsed on the way back, only a torn line waits for its end. A stream that the pod does not finish
ends in an error event, and a whole answer that it does not finish is a 502, so that a truncated one never
looks like success.
"""

from __future__ import annotations

import asyncio
import re

from wisp_gateway.errors import EndpointLost, UpstreamFailed
from wisp_gateway.inbound import sse
from wisp_gateway.inbound.client import Client
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.model_state import Desk
from wisp_gateway.upstream.connection import Answer
from wisp_gateway.upstream.pool import answer_headers

LONGEST_TORN_BYTES = 64 * 1024
_NEWLINE = ord("\n")
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')


class Splice:
    """One answer on its way from a pod to a client.

    Args:
        limit_bytes: how much of a whole answer is kept; a stream has no such limit.
    """

    def __init__(self, client: Client, answer: Answer, desk: Desk, limit_bytes: int) -> None:
        self._client = client
        self._answer = answer
        self._desk = desk
        self._limit_bytes = limit_bytes
        self._send_chunk = client.protocol.send_chunk
        self._whole = bytearray()
        self._torn = b""
        self._sent_bytes = 0

    async def run(self, metrics: Metrics) -> None:
        """Pass the answer on to its end.

        Raises:
            UpstreamFailed: the pod did not finish it.
        """
        try:
            if self._answer.status == 200 and self._answer.header(b"content-type").startswith(sse.MEDIA_TYPE):
                await self._stream()
            else:
                await self._collect()
        finally:
            metrics.sent.add(self._sent_bytes, self._desk.model.key)

    async def _stream(self) -> None:
        protocol = self._client.protocol
        await self._client.begin_stream(answer_headers(self._answer.headers))
        protocol.on_writable = self._answer.resume
        try:
            self._answer.attach(self._pass_event)
            await self._finished()
        finally:
            protocol.on_writable = None
        await self._client.end_stream(self._torn)

    def _pass_event(self, chunk: bytes) -> None:
        """Called by the pod's socket: the whole cost of a token is in here."""
        if self._torn or chunk[-1] != _NEWLINE:
            chunk = self._whole_lines(chunk)
        self._sent_bytes += len(chunk)
        self._desk.tokens += chunk.count(b"\n\n")
        if not self._send_chunk(chunk):
            # The loop tells us of a full buffer only after it has read the pod's socket dry, megabytes later.
            self._answer.pause()
            asyncio.get_running_loop().call_soon(self._resume_if_sent)

    def _whole_lines(self, chunk: bytes) -> bytes:
        """Keep a line back until its end is there, so that a pod that dies leaves no half event behind."""
        text = self._torn + chunk
        end = text.rfind(b"\n") + 1 if len(text) < LONGEST_TORN_BYTES else len(text)
        self._torn = text[end:]
        return text[:end]

    def _resume_if_sent(self) -> None:
        if self._client.protocol.is_writable:
            self._answer.resume()

    async def _collect(self) -> None:
        self._answer.attach(self._keep)
        await self._finished()
        self._check_size()
        body = bytes(self._whole)
        self._sent_bytes = len(body)
        self._desk.tokens += sum(int(count) for count in _COMPLETION_TOKENS.findall(body[-4096:])[-1:])
        if self._client.is_streaming:
            await self._client.write(sse.answer_event(self._answer.status, body))
            await self._client.end_stream()
        else:
            await self._client.reply(self._answer.status, body, answer_headers(self._answer.headers))

    def _keep(self, chunk: bytes) -> None:
        self._whole += chunk
        if len(self._whole) > self._limit_bytes:
            self._answer.abort()

    async def _finished(self) -> None:
        try:
            await asyncio.shield(self._answer.finished)
        except EndpointLost as lost:
            self._check_size()
            raise UpstreamFailed(
                "The pod stopped in the middle of its answer, which is incomplete. Send the request again."
            ) from lost

    def _check_size(self) -> None:
        if len(self._whole) > self._limit_bytes:
            raise UpstreamFailed(f"The pod's answer is over {self._limit_bytes} bytes (--max-answer-bytes).")
