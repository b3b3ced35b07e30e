"""A stream whose client leaves ends there, however much waits to be sent."""

import asyncio

from wisp_runtime.server.http.sse import EventStream


class Connection:
    """A connection as an application sees it; its client reads ``read`` events, and leaves or reads on."""

    def __init__(self, read):
        self.sent, self._read = 0, read
        self._has_left, self._may_write = asyncio.Event(), asyncio.Event()

    async def receive(self):
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent += message["type"] == "http.response.body"
        if self.sent >= self._read:
            await self._may_write.wait()

    def leave(self):
        """Wake those that receive and those that write, as the server does when a connection is lost."""
        self._has_left.set()
        self._may_write.set()


async def lines(made, ended):
    """Yield events, of which all are there already."""
    try:
        for _ in range(1000):
            made.append(None)
            yield b"data: {}\n\n"
    finally:
        await asyncio.sleep(0)  # as an engine's iterator, which aborts its sequence
        ended.append(True)


async def streamed(read, *, leaves):
    made, ended, connection = [], [], Connection(read)
    stream = EventStream(lines(made, ended))
    scope = {"type": "http", "path": "/v1/chat/completions", "headers": []}
    sending = asyncio.create_task(stream(scope, connection.receive, connection.send))
    while connection.sent < read:
        await asyncio.sleep(0)
    if leaves:
        connection.leave()
    else:
        connection._may_write.set()
    await sending
    return len(made), connection.sent, ended


def test_events_that_wait_for_a_client_are_not_made_once_it_has_left():
    assert asyncio.run(streamed(3, leaves=True)) == (3, 3, [True])


def test_a_client_that_reads_on_gets_every_event():
    assert asyncio.run(streamed(3, leaves=False)) == (1000, 1001, [True])
