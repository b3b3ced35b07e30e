"""Ends of a response in the background that meet: it has one end, whatever else comes at that moment."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.server.answers.parts import AnswerDelta, Text
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.responses import background
from wisp_runtime.server.api.responses.answer import Answer
from wisp_runtime.server.api.responses.background import BackgroundRun
from wisp_runtime.server.api.responses.output import Output
from wisp_runtime.server.api.responses.resource import response_head
from wisp_runtime.server.api.responses.store import ResponseStore, StoredResponse
from wisp_runtime.server.parsing.responses.request import ResponsesRequest
from wisp_runtime.server.text.stop import StopStrings

HELLO, END = AnswerDelta((Text("Hello"),)), AnswerDelta((Text("!"),), "stop")


class Generator:
    """Yields deltas; then its cleanup waits until it is let go."""

    def __init__(self, deltas):
        self.deltas, self.closing, self.may_close = deltas, asyncio.Event(), asyncio.Event()

    async def merged(self, _choices):
        try:
            for delta in self.deltas:
                yield 0, delta
            if self.deltas[-1].finish is None:
                await asyncio.Event().wait()
        finally:
            self.closing.set()
            await self.may_close.wait()


def begun(deltas):
    """Return a run that has begun, its generator, and what the store keeps."""
    generator = Generator(deltas)
    text = SimpleNamespace(generator=generator)
    service = SimpleNamespace(text=text, enter=lambda: None, leave=lambda: None)
    request = ResponsesRequest(model="m", input="hi", background=True)
    choice = Choice(Submit("r", (1, 2), 9, SamplingParams()), StopStrings(()))
    output = Output(None, is_summarized=False, is_encoded=False, namespaces={})
    answer = Answer(response_head(request, "resp_1", "m", SamplingParams()), choice, output, is_queued=True)
    stored = StoredResponse("resp_1", "", (), answer.json, is_over=False)
    run = BackgroundRun(service, ResponseStore(), answer, choice, stored)
    return run, generator, stored


async def cancelling():
    """Return what :func:`begun` does, and the task of a cancel that waits for the sequence to close."""
    run, generator, stored = begun([HELLO])
    run.start()
    for _ in range(5):
        await asyncio.sleep(0)
    first = asyncio.create_task(run.cancel())
    await generator.closing.wait()
    return run, generator, stored, first


async def ends_of(stored):
    events = [event async for event in stored.log.follow()]
    kinds = [event.decode().split("\n")[0].removeprefix("event: response.") for event in events]
    return [kind for kind in kinds if kind in ("completed", "incomplete", "failed")]


def test_a_response_that_is_complete_stays_so_if_it_is_cancelled_while_its_sequence_closes():
    async def scenario():
        run, generator, stored = begun([HELLO, END])
        run.start()
        await generator.closing.wait()
        cancelling = asyncio.create_task(run.cancel())
        await asyncio.sleep(0)
        generator.may_close.set()
        await cancelling
        assert await ends_of(stored) == ["completed"]
        return json.loads(stored.body())

    body = asyncio.run(scenario())
    assert (body["status"], body["output"][0]["content"][0]["text"]) == ("completed", "Hello!")


def test_a_second_cancel_waits_for_the_end_of_the_first():
    async def scenario():
        run, generator, stored, first = await cancelling()
        second = asyncio.create_task(run.cancel())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not first.done()
        assert not second.done()
        generator.may_close.set()
        await asyncio.gather(first, second)
        assert await ends_of(stored) == ["incomplete"]
        return json.loads(stored.body())

    assert asyncio.run(scenario())["status"] == "cancelled"


def test_a_client_that_leaves_while_it_cancels_ends_its_own_request_alone():
    async def scenario():
        run, generator, stored, first = await cancelling()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not stored.is_over
        generator.may_close.set()
        await run.cancel()
        assert stored.is_over

    asyncio.run(scenario())


@pytest.mark.parametrize("bound", ["MAX_KEPT_CHARS", "CHARGED_BYTES"])
def test_a_bound_that_the_last_token_passes_does_not_fail_what_is_complete(monkeypatch, bound):
    monkeypatch.setattr(background, bound, 0)

    async def scenario():
        run, generator, stored = begun([AnswerDelta((Text("!" * 20_000),), "stop")])
        run._store._max_bytes = 20_000 if bound == "CHARGED_BYTES" else 1 << 20
        generator.may_close.set()
        await asyncio.wait([run.start()])
        await asyncio.sleep(0)
        return await ends_of(stored), json.loads(stored.body())["status"]

    assert asyncio.run(scenario()) == (["completed"], "completed")
