"""Polling of pods' ``/state``: what one pod answers is that pod's matter alone."""

import asyncio
import gzip
import json
import time
from contextlib import asynccontextmanager

import pytest
from machine_pace import pace

from wisp_operator.cluster.observation.polling import Poller

GOOD = json.dumps({"status": "ready", "phases": [{"name": "import", "state": "done"}]}).encode()


def http(body, *headers, status="200 OK"):
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def pod(answer, pause_s=0.0):
    """A pod that sends ``answer`` to every request, after ``pause_s``; its address."""

    async def serve(reader, writer):
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(pause_s)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        server.close()


HOSTILE = {
    "phases is null": http(b'{"phases": null}'),
    "phases is a number": http(b'{"phases": 7}'),
    "a phase is no object": http(b'{"phases": [1]}'),
    "nesting without end": http(b"[" * 100_000),
    "nesting inside the size limit": http(b'{"a":' * 5_000),
    "a number beyond float": http(b'{"load": {"running": 1e400}}'),
    "no number": http(b'{"load": {"running": NaN, "waiting": "many"}}'),
    "ten thousand phases": http(json.dumps({"phases": [{"name": "x"}] * 10_000}).encode()),
    "16 MiB": http(b'{"status": "' + b"x" * (16 << 20) + b'"}'),
    "a bomb": lambda: http(gzip.compress(b" " * (64 << 20)), "content-encoding: gzip"),
    "no text": http(b"\xff\xfe\x00"),
    "an unknown character set": http(GOOD).replace(b"application/json", b"application/json; charset=nope"),
    "no HTTP": b"hello\r\n\r\n",
    "a head without an end": b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 20_000,
    "an empty body": http(b""),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_whatever_a_pod_answers_the_others_are_polled_on(answer):
    async def scenario():
        changed = []
        poller = Poller(changed.append)
        async with pod(answer() if callable(answer) else answer) as bad, pod(http(GOOD)) as good:
            poller.set_pods("evil/m", {"bad": (bad, False)})
            task = asyncio.create_task(poller.run())
            await asyncio.sleep(0.8)
            poller.set_pods("team/m", {"good": (good, False)})  # after the bad one was polled
            async with asyncio.timeout(60):
                while not poller.states("team/m"):
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0.02)
            assert not task.done()
            assert changed.count("team/m") == 1
            await end(task)

    asyncio.run(scenario())


def test_a_redirect_leads_nowhere():
    async def scenario():
        async with pod(http(GOOD)) as elsewhere:
            redirect = http(b"", f"location: http://{elsewhere}/state", status="307 Temporary Redirect")
            async with pod(redirect) as bad:
                poller = Poller(lambda key: None)
                poller.set_pods("evil/m", {"bad": (bad, False)})
                task = asyncio.create_task(poller.run())
                await asyncio.sleep(0.8)
                assert poller.states("evil/m") == {}
                await end(task)

    asyncio.run(scenario())


def test_pods_that_do_not_answer_delay_no_other_models_pods():
    async def scenario():
        poller = Poller(lambda key: None)
        async with pod(b"", pause_s=60.0) as silent, pod(http(GOOD)) as good:
            poller.set_pods("evil/m", {f"p{n}": (silent, False) for n in range(300)})
            task = asyncio.create_task(poller.run())
            await asyncio.sleep(0.5)
            began = time.monotonic()
            poller.set_pods("team/m", {"good": (good, False)})
            while not poller.states("team/m"):
                await asyncio.sleep(0.02)
            took_s = time.monotonic() - began
            await end(task)
        return took_s

    with pace() as machine:
        took_s = asyncio.run(scenario())
    assert took_s < 2.0 * machine.stretch


def test_a_pod_that_goes_while_it_is_asked_leaves_nothing_behind():
    async def scenario():
        poller = Poller(lambda key: None)
        async with pod(http(GOOD), pause_s=0.2) as slow:
            poller.set_pods("team/m", {"p": (slow, False)})
            task = asyncio.create_task(poller.run())
            await asyncio.sleep(0.05)
            poller.set_pods("team/m", {})
            await asyncio.sleep(0.5)
            assert poller.states("team/m") == {}
            await end(task)

    asyncio.run(scenario())


async def end(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
