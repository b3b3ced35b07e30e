"""The Responses API by the official client, every answer and event checked against its types."""

import httpx
import openai
import pytest
from fake_engine import END, tokens_of

ASK = {"model": "tiny", "input": "hi"}
PATH = "/v1/responses"


@pytest.fixture
def client(api, server):
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="unused", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def said(server):
    """Return the latest prompt, its special tokens as text."""
    names = {256: "<|start|>", 257: "<|end|>"}
    return "".join(names.get(token) or chr(token) for token in server.engine.submitted[-1].prompt)


def slow(server, text="x" * 200):
    server.engine.script = lambda _: [*tokens_of(text), END]
    server.engine.delay_s = 0.02


def test_it_creates_a_response_that_says_all_that_was_asked(client, server):
    server.engine.cached_tokens = 3
    response = client.responses.create(
        **ASK,
        instructions="Be brief.",
        metadata={"a": "b"},
        max_output_tokens=20,
        temperature=0.5,
        top_p=0.9,
        user="u",
        prompt_cache_key="k",
        safety_identifier="s",
        service_tier="flex",
        max_tool_calls=3,
        parallel_tool_calls=False,
        reasoning={"summary": "auto"},
        extra_body={"seed": 5, "top_k": 4},
    )
    assert response.output_text == "Hello, world"
    assert (response.status, response.object, response.service_tier) == ("completed", "response", "default")
    assert response.completed_at >= response.created_at
    shown = response.model_dump()
    assert {
        name: shown[name] for name in ("instructions", "metadata", "max_output_tokens", "temperature")
    } == {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "max_output_tokens": 20,
        "temperature": 0.5,
    }
    assert (shown["top_p"], shown["user"], shown["prompt_cache_key"]) == (0.9, "u", "k")
    assert (shown["safety_identifier"], shown["max_tool_calls"], shown["store"]) == ("s", 3, True)
    assert shown["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert response.usage.input_tokens_details.cached_tokens == 3
    assert response.usage.total_tokens == response.usage.input_tokens + 13
    assert response._request_id.startswith("req-")
    submit = server.engine.submitted[-1]
    assert (submit.sampling.seed, submit.sampling.top_k, submit.max_tokens) == (5, 4, 20)
    assert said(server).startswith("<|start|>system\nBe brief.<|end|>\n<|start|>user\nhi<|end|>")


def test_its_stream_has_every_event_in_order_and_ends_with_the_response(client):
    events = list(client.responses.create(**ASK, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in events[4:-4]) == "Hello, world"
    final = events[-1].response
    assert final.output == [events[-2].item]
    assert client.responses.retrieve(final.id) == final


def test_the_frame_of_a_stream_is_openais(api):
    text = api.post(PATH, json=ASK | {"stream": True}).text
    assert text.startswith("event: response.created\ndata: {")
    assert "[DONE]" not in text
    assert text.endswith("\n\n")


def test_the_streaming_helper_builds_the_response(client):
    with client.responses.stream(**ASK) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_response().output_text == "Hello, world"
    assert {"response.output_text.delta", "response.completed"} <= kinds


def test_an_answer_cut_by_its_limit_is_incomplete(client):
    response = client.responses.create(**ASK, max_output_tokens=5)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.output[0].status, response.output_text) == ("incomplete", "Hello")
    *_, last = client.responses.create(**ASK, max_output_tokens=5, stream=True)
    assert last.type == "response.incomplete"


def test_logprobs_are_included_on_demand(client):
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    response = client.responses.create(**ASK, **asked)
    assert [entry.token for entry in response.output[0].content[0].logprobs] == list("Hello, world")
    events = list(client.responses.create(**ASK, **asked, stream=True))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [entry.token for event in deltas for entry in event.logprobs] == list("Hello, world")
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert len(done.logprobs) == len("Hello, world")


def test_a_conversation_goes_on_from_a_response_without_its_instructions(client, server):
    first = client.responses.create(**ASK, instructions="Be brief.")
    second = client.responses.create(model="tiny", input="more", previous_response_id=first.id)
    assert said(server) == (
        "<|start|>user\nhi<|end|>\n<|start|>assistant\nHello, world<|end|>\n"
        "<|start|>user\nmore<|end|>\n<|start|>assistant\n"
    )
    client.responses.create(model="tiny", input="last", previous_response_id=second.id, instructions="Shout.")
    assert said(server).startswith("<|start|>system\nShout.<|end|>\n<|start|>user\nhi<|end|>")
    assert said(server).count("Hello, world") == 2


def test_the_same_conversation_sent_as_items_has_the_same_prompt(client, server):
    first = client.responses.create(**ASK)
    client.responses.create(model="tiny", input="more", previous_response_id=first.id)
    continued = said(server)
    history = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "more"}]
    client.responses.create(model="tiny", input=history, store=False)
    assert said(server) == continued
    reference = {"type": "item_reference", "id": first.output[0].id}
    client.responses.create(model="tiny", input=[history[0], reference, history[2]])
    assert said(server) == continued


def test_its_input_items_come_in_pages_of_either_order(client):
    first = client.responses.create(**ASK)
    history = [{"role": "developer", "content": [{"type": "input_text", "text": str(i)}]} for i in range(4)]
    second = client.responses.create(model="tiny", input=history, previous_response_id=first.id)
    listed = list(client.responses.input_items.list(second.id, order="asc", limit=2))  # follows the pages
    assert [item.role for item in listed] == ["user", "assistant", *["developer"] * 4]
    assert [item.content[0].text for item in listed] == ["hi", "Hello, world", "0", "1", "2", "3"]
    newest = client.responses.input_items.list(second.id, limit=1)
    assert (newest.data[0].id, newest.has_more) == (listed[-1].id, True)
    assert client.responses.input_items.list(second.id, order="asc", after=listed[-1].id).data == []


def test_input_items_are_as_they_were_sent(client):
    call = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c", "name": "f"}
    call |= {"arguments": "{}", "namespace": "n", "caller": {"type": "direct"}, "created_by": "me"}
    result = {"type": "function_call_output", "id": "fco_1", "status": "completed", "call_id": "c"}
    result |= {"name": "f", "namespace": "n", "caller": {"type": "direct"}, "created_by": "me"}
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    given = [call, result | {"output": "text"}, result | {"output": parts, "id": "fco_2"}]
    response = client.responses.create(model="tiny", input=given)
    listed = client.responses.input_items.list(response.id, order="asc")
    assert [item.to_dict() for item in listed] == given
    client.responses.create(model="tiny", input="go on", previous_response_id=response.id)


def test_a_response_is_kept_until_it_is_deleted_unless_store_is_false(client):
    kept, unkept = client.responses.create(**ASK), client.responses.create(**ASK, store=False)
    assert client.responses.retrieve(kept.id) == kept
    client.responses.delete(kept.id)
    for identity in (kept.id, unkept.id):
        with pytest.raises(openai.NotFoundError, match="not stored here"):
            client.responses.retrieve(identity)
        with pytest.raises(openai.BadRequestError) as raised:
            client.responses.create(**ASK, previous_response_id=identity)
        assert (raised.value.param, raised.value.code) == (
            "previous_response_id",
            "previous_response_not_found",
        )


def test_a_response_of_another_account_is_as_one_that_does_not_exist(api):
    mine, other = {"x-wisp-account": "a" * 16}, {"x-wisp-account": "b" * 16}
    created = api.post(PATH, json=ASK, headers=mine | {"x-wisp-pod-tag": "0123456789ab"}).json()
    identity, item = created["id"], created["output"][0]["id"]
    assert identity.startswith("resp_0123456789ab")
    assert len(identity) == len("resp_") + 12 + 32
    for headers in (other, {}):
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            foreign = api.request(method, f"{PATH}/{identity}{path}", headers=headers)
            absent = api.request(method, f"{PATH}/{'resp_' + 'x' * 44}{path}", headers=headers)
            assert (foreign.status_code, absent.status_code) == (404, 404)
            assert foreign.json()["error"]["code"] == absent.json()["error"]["code"]
        for body in ({"previous_response_id": identity}, {"input": [{"id": item}]}):
            assert api.post(PATH, json=ASK | body, headers=headers).status_code == 400
    assert api.get(f"{PATH}/{identity}", headers=mine).json() == created
    assert api.post(PATH, json=ASK | {"input": [{"id": item}]}, headers=mine).status_code == 200


@pytest.mark.parametrize("tag", ["", "0123456789AB", "0123456789abc", "../../../../"])
def test_a_tag_that_is_none_is_not_part_of_an_id(api, tag):
    identity = api.post(PATH, json=ASK, headers={"x-wisp-pod-tag": tag}).json()["id"]
    assert len(identity) == len("resp_") + 32


def test_a_response_in_the_background_is_polled_until_it_is_there(client, server):
    response = client.responses.create(**ASK, background=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    server.wait_until(lambda: client.responses.retrieve(response.id).status == "completed")
    assert client.responses.retrieve(response.id).output_text == "Hello, world"
    assert client.responses.cancel(response.id).status == "completed"  # one that has ended stays as it is
    assert server.engine.aborted == []


def test_a_response_in_the_background_is_streamed_from_any_event_on(client, server):
    slow(server, "x" * 20)
    events = []
    for event in client.responses.create(**ASK, background=True, stream=True):
        events.append(event)
        if len(events) == 8:
            break  # the client leaves, and the response goes on
    kinds = [event.type for event in events[:3]]
    assert kinds == ["response.created", "response.queued", "response.in_progress"]
    identity = events[0].response.id
    rest = list(client.responses.retrieve(identity, stream=True, starting_after=events[-1].sequence_number))
    assert [event.sequence_number for event in [*events, *rest]] == list(range(len(events) + len(rest)))
    assert rest[-1].response.output_text == "x" * 20
    assert list(client.responses.retrieve(identity, stream=True)) == [*events, *rest]
    assert list(client.responses.retrieve(identity, stream=True, starting_after=9999)) == []


def test_a_cancelled_response_ends_its_sequence_and_its_streams(client, server):
    slow(server)
    response = client.responses.create(**ASK, background=True)
    server.wait_until(lambda: client.responses.retrieve(response.id).output_text)
    with pytest.raises(openai.BadRequestError, match="still being written"):
        client.responses.create(**ASK, previous_response_id=response.id)
    cancelled = client.responses.cancel(response.id)
    assert (cancelled.status, cancelled.output[0].status) == ("cancelled", "incomplete")
    assert cancelled.output_text == "x" * len(cancelled.output_text)
    assert len(server.engine.aborted) == 1
    assert client.responses.cancel(response.id) == cancelled
    *_, last = client.responses.retrieve(response.id, stream=True)
    assert last.response == cancelled
    server.wait_until(lambda: server.server.service.active == 0)


def test_deleting_a_response_under_way_ends_it(client, server):
    slow(server)
    response = client.responses.create(**ASK, background=True)
    client.responses.delete(response.id)
    server.wait_until(lambda: server.server.service.active == 0)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_only_responses_in_the_background_can_be_cancelled_or_streamed_again(client):
    response = client.responses.create(**ASK)
    with pytest.raises(openai.BadRequestError, match="'background': true"):
        client.responses.cancel(response.id)
    with pytest.raises(openai.BadRequestError, match="'background': true"):
        list(client.responses.retrieve(response.id, stream=True))


def test_a_client_that_leaves_ends_its_sequence_and_nothing_is_kept(client, server):
    slow(server)
    with client.responses.create(**ASK, stream=True) as stream:
        identity = next(iter(stream)).response.id
    server.wait_until(lambda: len(server.engine.aborted) == 1)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(identity)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + PATH, json=ASK, timeout=2)
    server.wait_until(lambda: len(server.engine.aborted) == 2)


def test_a_failure_before_the_first_token_is_an_ordinary_error(client, server):
    server.engine.fails_with = "out of luck"
    for fields in ({}, {"stream": True}):
        with pytest.raises(openai.InternalServerError, match="out of luck"):
            client.responses.create(**ASK, **fields)


def test_a_failure_in_the_background_is_a_failed_response(client, server):
    server.engine.fails_with = "out of luck"
    response = client.responses.create(**ASK, background=True)
    server.wait_until(lambda: client.responses.retrieve(response.id).status == "failed")
    error = client.responses.retrieve(response.id).error
    assert (error.code, error.message) == ("server_error", "out of luck")
    kinds = [event.type for event in client.responses.retrieve(response.id, stream=True)]
    assert kinds == ["response.created", "response.queued", "error", "response.failed"]
