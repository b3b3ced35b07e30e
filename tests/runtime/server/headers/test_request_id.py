"""``x-request-id`` of the runtime's responses, by which the gateway's log and its own name a request."""

import re

import pytest

CHAT = "/v1/chat/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("body", [ASK, ASK | {"stream": True}, ASK | {"model": "other"}, {}])
def test_a_response_repeats_the_id_of_its_request_also_an_error(api, body):
    answer = api.post(CHAT, json=body, headers={"x-request-id": "gw-1.7:a"})
    assert answer.headers.get_list("x-request-id") == ["gw-1.7:a"]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "%0a"])
def test_an_id_that_no_log_should_repeat_is_replaced(api, given):
    answer = api.post(CHAT, json=ASK, headers={"x-request-id": given})
    [own] = answer.headers.get_list("x-request-id")
    assert re.fullmatch("req-[0-9a-f]{32}", own)
    refused = api.post(CHAT, json={}, headers={"x-request-id": given})
    assert re.fullmatch("req-[0-9a-f]{32}", refused.headers["x-request-id"])


def test_a_path_that_is_not_there_has_one_too(api):
    assert api.get("/v1/nothing").headers["x-request-id"].startswith("req-")
