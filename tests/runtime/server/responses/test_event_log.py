"""Events of a response in the background, for readers that come early, late, or too late."""

import asyncio

import pytest

from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.api.responses.events import CAUGHT_UP, EventLog
from wisp_runtime.server.api.responses.stored_items import parsed_items


def test_a_reader_that_waits_behind_the_last_event_gets_a_comment_at_the_end():
    async def read():
        log = EventLog()
        reading = asyncio.create_task(_all(log.follow(starting_after=50)))
        await asyncio.sleep(0)
        log.close()
        return await reading

    assert asyncio.run(read()) == [CAUGHT_UP]


async def _all(events):
    return [event async for event in events]


@pytest.mark.parametrize("name", ["", "x" * 100_000])
def test_a_stored_call_that_no_request_may_bring_is_a_clear_refusal(name):
    call = f'{{"type":"function_call","call_id":"c","name":"{name}","arguments":"{{}}"}}'
    with pytest.raises(ApiError, match="cannot be sent to the model again") as refused:
        parsed_items([call])
    assert (refused.value.status, refused.value.param) == (400, "previous_response_id")
