"""The prompt's text and the session of a request, in each API's fields."""

from __future__ import annotations

import json

import pytest

from wisp_gateway.inbound.prompt_text import MAX_TEXT_BYTES, prompt_text, session_name
from wisp_gateway.inbound.request_body import parse

HELLO = [{"role": "user", "content": "hello"}]


def text_of(indent=None, **fields):
    return prompt_text(parse(json.dumps(fields, indent=indent).encode()))


@pytest.mark.parametrize(
    ("fields", "order"),
    [
        ({"messages": HELLO, "tools": [1]}, ("tools", "messages")),
        ({"prompt": "x", "suffix": "y"}, ("prompt",)),
        ({"prompt": [[1, 2], [3]]}, ("prompt",)),
        (
            {"input": "x", "instructions": "be kind", "tools": []},
            ("instructions", "tools", "input"),
        ),  # Responses
        ({"messages": HELLO, "tools": [1], "system": "s"}, ("system", "tools", "messages")),  # Anthropic
    ],
)
def test_the_text_is_in_the_order_of_the_models_context(fields, order):
    text = text_of(model="m", **fields)
    assert text.parts == tuple(json.dumps(fields[name]).encode() for name in order)


@pytest.mark.parametrize(
    ("fields", "other", "is_same"),
    [
        ({"prompt": "a" * 2000}, {"prompt": "a" * 3000}, True),  # only the beginning counts
        ({"prompt": "a"}, {"prompt": "b"}, False),
        ({"prompt": [1, 2, 3]}, {"prompt": [1, 2, 4]}, False),
        ({"messages": HELLO}, {"messages": [{"role": "system", "content": "hello"}]}, False),
        ({"messages": [{"content": [{"text": "x"}]}]}, {"messages": [{"content": [{"text": "y"}]}]}, False),
        ({"prompt": "x", "tools": [1]}, {"prompt": "x", "tools": [2]}, False),
        ({"prompt": "x", "seed": 1}, {"prompt": "x", "seed": 2}, True),
        ({"messages": "odd"}, {"messages": "odd"}, True),  # validation is the pod's
    ],
)
def test_the_prefix_is_of_the_prompts_first_bytes_without_white_space(fields, other, is_same):
    assert (text_of(**fields).prefix == text_of(**other).prefix) is is_same
    assert text_of(**fields).prefix == text_of(indent=2, **fields).prefix


def test_without_a_prompt_there_is_no_text():
    assert text_of(model="m") is None


def test_a_long_text_is_cut():
    text = text_of(system="s" * 1000, messages="m" * MAX_TEXT_BYTES)
    assert sum(map(len, text.parts)) == MAX_TEXT_BYTES


def block(content, **more):
    return {"role": "user", "content": [{"type": "text", "text": content, **more}]}


def test_a_mark_of_what_to_cache_that_moves_on_leaves_the_history_as_it_was():
    mark = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
    before = text_of(system=[{"text": "s", **mark}], messages=[block("a"), block("b", **mark)])
    after = text_of(system=[{"text": "s", **mark}], messages=[block("a"), block("b"), block("c", **mark)])
    plain = text_of(system=[{"text": "s"}], messages=[block("a"), block("b"), block("c")])
    assert after.parts == plain.parts
    assert after.parts[1].startswith(before.parts[1].rstrip(b"]"))
    quoted = [block('a "cache_control": {} of text')]
    assert json.loads(text_of(messages=quoted).parts[0]) == quoted


CLAUDE = '{"device_id": "d", "session_id": "54c1"}'


@pytest.mark.parametrize(
    ("headers", "fields", "name"),
    [
        ({}, {}, ""),
        ({"x-session-id": "s"}, {"prompt_cache_key": "k"}, "s"),
        ({"x-claude-code-session-id": "c"}, {"metadata": {"user_id": "u"}}, "c"),
        ({"session_id": "codex"}, {"prompt_cache_key": "codex"}, "codex"),
        ({}, {"prompt_cache_key": "k", "metadata": {"user_id": "u"}}, "k"),
        ({}, {"session_id": "s"}, "s"),
        ({}, {"metadata": {"user_id": CLAUDE}}, CLAUDE),
        ({}, {"metadata": {"topic": "x"}}, ""),
        ({}, {"metadata": "user_id"}, ""),
        ({}, {"metadata": {"user_id": 5}}, ""),
        ({}, {"metadata": {"user_id": "u" * 9000}}, ""),
        ({}, {"prompt_cache_key": ["k"]}, ""),
        ({}, {"user": "u"}, ""),  # many sessions at once
        ({"x-session-id": "s" * 600}, {}, ""),
    ],
)
def test_a_session_is_named_by_what_clients_send(headers, fields, name):
    body = parse(json.dumps({"model": "m", **fields}).encode())
    assert session_name(lambda header: headers.get(header.decode(), ""), body) == name
