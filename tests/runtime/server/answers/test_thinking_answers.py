"""Answers of a model that thinks, through the server: fields, streams, usage, loops, history, efforts."""

import json
from dataclasses import replace

import httpx
import pytest
from fake_engine import END, TEMPLATE, live_server, tokens_of, write_model

from wisp_runtime.engine.transport.messages import ThinkingRule

CHAT = "/v1/chat/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
THINKS = (
    "{% for message in messages %}"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}\n{% endfor %}"
    "{% if enable_thinking is false %}<think></think>{% endif %}"
)
CLOSED = {"chat_template_kwargs": {"enable_thinking": False}}
LOOP = "So it is. Or not? "


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(write_model(tmp_path_factory.mktemp("models") / "thinks", THINKS)) as running:
        yield running


def says(server, text):
    server.engine.script = lambda _: [*tokens_of(text), END]


def chunks_of(response):
    *events, _, _ = response.text.split("\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def answer_of(api, **fields):
    response = api.post(CHAT, json=ASK | fields)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("with_logprobs", [False, True])
def test_thinking_has_a_field_of_its_own_streamed_or_not(api, server, with_logprobs):
    says(server, "<think>\nHm: é.\n</think>\n\nYes.")
    fields = {"logprobs": True} if with_logprobs else {}
    (choice,) = answer_of(api, **fields)["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Yes.",
        "refusal": None,
        "reasoning_content": "Hm: é.",
        "reasoning": "Hm: é.",
    }
    deltas = [
        choice["delta"]
        for chunk in chunks_of(api.post(CHAT, json=ASK | fields | {"stream": True}))
        for choice in chunk["choices"]
    ]
    for name in ("content", "reasoning_content", "reasoning"):
        assert "".join(delta.get(name) or "" for delta in deltas) == choice["message"][name]


def test_usage_counts_the_tokens_of_thinking_its_closing_marker_included(api, server):
    thinking = "\n<think>\nHm.\n</think>"
    says(server, thinking + "\n\nYes.")
    usage = answer_of(api)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len(thinking)}
    assert usage["completion_tokens"] == len(thinking) + len("\n\nYes.") + 1  # the end token
    says(server, "Yes.")
    assert answer_of(api)["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    says(server, "<think>Hm")
    assert answer_of(api)["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("<think>Hm")}


def test_include_reasoning_false_leaves_thinking_out_but_counts_it(api, server):
    says(server, "<think>Hm.</think>Yes.")
    answer = answer_of(api, include_reasoning=False)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Yes.", "refusal": None}
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("<think>Hm.</think>")}
    stream = api.post(CHAT, json=ASK | {"include_reasoning": False, "stream": True}).text
    assert "Yes" not in stream.split("reasoning")[0] or "reasoning" not in stream


def test_include_reasoning_false_leaves_out_the_tokens_of_thinking_too(api, server):
    says(server, "<think>Hm.</think>Yes.")
    fields = {"include_reasoning": False, "logprobs": True, "return_token_ids": True}
    (choice,) = answer_of(api, **fields)["choices"]
    chunks = chunks_of(api.post(CHAT, json=ASK | fields | {"stream": True}))
    streamed = [choice for chunk in chunks for choice in chunk["choices"]]
    entries = [entry for chunk in streamed for entry in (chunk["logprobs"] or {"content": []})["content"]]
    for shown in (choice["logprobs"]["content"], entries):
        text = "".join(entry["token"] for entry in shown)
        assert text.endswith("Yes.")
        assert "Hm" not in text
    ids = [token for chunk in streamed for token in chunk.get("token_ids") or ()]
    assert ids == choice["token_ids"]
    assert not set(tokens_of("Hm")) & set(ids)


def test_thinking_that_the_prompt_has_closed_is_text(api, server):
    says(server, "Use <think>.")
    (choice,) = answer_of(api, reasoning_effort="none")["choices"]
    assert bytes(server.engine.submitted[-1].prompt).endswith(b"hi\n<think></think>")
    assert choice["message"]["content"] == "Use <think>."


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"thinking_token_budget": 30}, 30),
        ({"thinking_token_budget": 0}, 0),
        ({"reasoning_effort": "low"}, 1024),
        ({"thinking_token_budget": 30, "n": 2}, 30),
    ],
)
def test_the_engine_gets_the_budget_and_the_markers_tokens(api, server, fields, budget):
    answer_of(api, **fields)
    opening, closing = tuple(tokens_of("<think>")), tuple(tokens_of("</think>"))
    rules = [submit.thinking for submit in server.engine.submitted]
    assert rules == [ThinkingRule((opening,), (closing,), max_tokens=budget)] * fields.get("n", 1)


@pytest.mark.parametrize(
    "fields",
    [{}, {"reasoning_effort": "high"}, {"thinking_token_budget": -1}, {"thinking_token_budget": 9, **CLOSED}],
)
def test_thinking_without_a_budget_or_that_the_prompt_has_closed_needs_no_rule(api, server, fields):
    answer_of(api, **fields)
    assert server.engine.submitted[-1].thinking is None


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("text", "thinking", "content"),
    [
        (f"<think>Hm.</think>\n\n{CALL}", "Hm.", None),
        (f"<think>Hm.</think>See:\n{CALL}", "Hm.", "See:"),
        (f"<think>Hm.\n{CALL}", "Hm.", None),  # Qwen 3.5 forgets to close it
        (f"<think>With <tool_call>, as told.</think>{CALL}", "With <tool_call>, as told.", None),
    ],
)
def test_calls_are_found_behind_thinking(api, server, text, thinking, content):
    server.engine.info = replace(server.engine.info, max_context=4096)
    says(server, text)
    (choice,) = answer_of(api, tools=TOOLS)["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == (thinking, content)
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [{"a": 1}]
    assert choice["finish_reason"] == "tool_calls"


def test_a_budget_ends_with_thinking_also_where_a_call_ended_that(api, server):
    server.engine.info = replace(server.engine.info, max_context=4096)
    says(server, "Yes.")
    answer_of(api, tools=TOOLS, thinking_token_budget=9)
    closings = server.engine.submitted[-1].thinking.closings
    assert closings == (tuple(tokens_of("</think>")), tuple(tokens_of('<tool_call>\n{"name"')))


def test_a_loop_in_thinking_ends_the_answer_and_its_sequence(api, server):
    says(server, "<think>" + LOOP * 25)
    answer = answer_of(api, max_tokens=450)
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "repetition_detected")
    assert choice["message"]["reasoning_content"] == (LOOP * 25)[:256]
    assert answer["usage"]["completion_tokens"] == len("<think>") + 256
    assert server.engine.aborted == [server.engine.submitted[-1].request_id]
    last = chunks_of(api.post(CHAT, json=ASK | {"max_tokens": 450, "stream": True}))[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("length", "repetition_detected")
    assert (
        'wisp_sequences_finished_total{model_name="tiny",finished_reason="repetition"} 2'
        in api.get("/metrics").text
    )


def test_text_that_repeats_is_the_models_business_unless_the_request_says_otherwise(api, server):
    says(server, "<think>Hm.</think>" + LOOP * 20)
    (choice,) = answer_of(api)["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", LOOP * 20)
    wanted = {"repetition_detection": {"max_pattern_size": 20, "min_count": 3}}
    (choice,) = answer_of(api, **wanted)["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "repetition_detected")
    assert choice["message"]["content"] == LOOP * 3
    completion = api.post("/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 99} | wanted)
    assert completion.json()["choices"][0]["stop_reason"] == "repetition_detected"


def test_a_request_may_allow_loops_in_thinking(api, server):
    says(server, "<think>" + LOOP * 22)
    (choice,) = answer_of(api, repetition_detection={})["choices"]
    assert (choice["finish_reason"], choice["message"]["reasoning_content"]) == ("stop", LOOP * 22)


@pytest.mark.parametrize(
    ("detection", "says"),
    [
        ({"max_pattern_size": 5}, "'min_count' must be at least 2"),
        ({"max_pattern_size": 5, "min_count": 1}, "'min_count' must be at least 2"),
        ({"max_pattern_size": 5, "min_pattern_size": 6, "min_count": 3}, "at most 'max_pattern_size'"),
        ({"max_pattern_size": 5000, "min_count": 3}, "256"),
        ({"max_size": 5}, "max_size"),
    ],
)
def test_a_rule_of_repetition_that_means_nothing_is_refused(api, detection, says):
    response = api.post(CHAT, json=ASK | {"repetition_detection": detection})
    error = response.json()["error"]
    assert (response.status_code, error["param"].split(".")[0]) == (400, "repetition_detection")
    assert says in error["message"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_the_thinking_of_former_messages_reaches_the_template_under_each_of_its_names(api, server, name):
    former = {"role": "assistant", "content": "Yes.", name: "Hm."}
    assert answer_of(api, messages=[*ASK["messages"], former])
    assert b"<think>Hm.</think>Yes." in bytes(server.engine.submitted[-1].prompt)


def test_a_template_gets_thinking_in_the_fields_that_it_reads(tmp_path):
    template = (
        "{% if tools %}{% endif %}"
        "{% for message in messages %}[{{ message['thinking'] }}{{ message.content }}]{% endfor %}"
    )
    messages = [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm.",
            "tool_calls": [{"function": {"name": "f"}}],
        },
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Ah."},  # harmony refuses both at once
    ]
    with (
        live_server(write_model(tmp_path / "m", template)) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        assert client.post(CHAT, json=ASK | {"messages": messages}).status_code == 200
        assert bytes(server.engine.submitted[-1].prompt) == b"[Hm.][Yes.]"


def test_a_model_that_does_not_think_has_no_such_field_and_refuses_the_wish(tmp_path):
    with (
        live_server(write_model(tmp_path / "m", TEMPLATE)) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        says(server, "<think>Hm.</think>")
        answer = client.post(CHAT, json=ASK | {"reasoning_effort": "none"}).json()
        assert answer["choices"][0]["message"]["content"] == "<think>Hm.</think>"
        assert "completion_tokens_details" not in answer["usage"]
        for fields in ({"reasoning_effort": "low"}, {"thinking_token_budget": 9}):
            assert client.post(CHAT, json=ASK | fields).json()["error"]["param"] == next(iter(fields))
