"""Ends of answers that a request asks for: what ended one is named, streamed or not, in every dialect."""

import json

import pytest
from fake_engine import END, START, tokens_of

CHAT, COMPLETE, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
USER = [{"role": "user", "content": "hi"}]
LETTER_L = ord("l")


def ends_of(api, path, body):
    """Return the last choice or message of an answer, complete and streamed."""
    answer = api.post(path, json=body).json()
    complete = answer if path == MESSAGES else answer["choices"][0]
    events = api.post(path, json=body | {"stream": True}).text.split("\n\n")
    sent = [json.loads(event.partition("data: ")[2]) for event in events if "data: {" in event]
    if path == MESSAGES:
        return complete, next(event["delta"] for event in sent if event["type"] == "message_delta")
    return complete, sent[-1]["choices"][0]


@pytest.mark.parametrize("path", [CHAT, COMPLETE])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"stop": ["wor"]}, "wor"),
        ({"stop_token_ids": [LETTER_L]}, LETTER_L),
        ({"stop_token_ids": [LETTER_L], "include_stop_str_in_output": True}, LETTER_L),
        ({"stop_token_ids": [LETTER_L], "stop": ["H"]}, "H"),  # came first
        ({"stop": ["<|start|>"]}, "<|start|>"),  # a special token, which an answer never shows
        ({"stop_token_ids": [END]}, None),  # the model's own end
        ({"stop": ["<|end|>"]}, None),
        ({"stop": ["<|end|>"], "ignore_eos": True}, "<|end|>"),
    ],
)
def test_a_stop_reason_is_the_string_or_the_token_that_was_asked_for(api, server, path, fields, reason):
    has_start = "<|start|>" in fields.get("stop", ())
    server.engine.script = lambda _: [*tokens_of("Hello, world"), START if has_start else END]
    body = {"model": "tiny", "max_tokens": 50, **({"messages": USER} if path == CHAT else {"prompt": "hi"})}
    for end in ends_of(api, path, body | fields):
        assert (end["finish_reason"], end.get("stop_reason")) == ("stop", reason)


@pytest.mark.parametrize(
    ("stops", "token", "reason", "stop"),
    [
        (["<|start|>"], START, "stop_sequence", "<|start|>"),
        (["<|start|>", "wor"], START, "stop_sequence", "wor"),
        (["<|start|>"], END, "end_turn", None),
        (["<|end|>"], END, "end_turn", None),
    ],
)
def test_a_stop_sequence_that_is_a_special_token_is_one(api, server, stops, token, reason, stop):
    server.engine.script = lambda _: [*tokens_of("Hello, world"), token]
    body = {"model": "tiny", "max_tokens": 50, "messages": USER, "stop_sequences": stops}
    for end in ends_of(api, MESSAGES, body):
        assert (end["stop_reason"], end["stop_sequence"]) == (reason, stop)
