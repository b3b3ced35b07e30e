"""Content blocks of Anthropic's answers, made of parts: streamed events, and the complete blocks."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wisp_runtime.server.answers.parts import CallArguments, CallStart, Text, Thinking
from wisp_runtime.server.api.anthropic.content import (
    MAX_BLANK_CHARS,
    BlockEvents,
    CompleteContent,
    parsed_input,
)
from wisp_runtime.server.api.anthropic.signature import digest_signature, text_signature


def events_of(parts, **settings):
    blocks = BlockEvents(**settings)
    return [*(event for part in parts for event in blocks.push(part)), *blocks.finish()]


def blocks_of(parts, **settings):
    content = CompleteContent()
    content.add(events_of(parts, **settings))
    return [{name: value for name, value in block.items() if name != "id"} for block in content.blocks()]


def text(value):
    return {"type": "text", "text": value}


def thinking(value):
    return {"type": "thinking", "thinking": value, "signature": digest_signature(value)}


def use(name, **values):
    return {"type": "tool_use", "name": name, "input": values}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], []),
        ([Text("a"), Text(" b")], [text("a b")]),
        ([Text("\n"), Text("\na")], [text("\n\na")]),
        ([Text("a"), Text("\n")], [text("a\n")]),
        ([Text(" \n")], []),  # no block of whitespace alone, which clients must not send back
        ([Text(" " * (MAX_BLANK_CHARS + 1))], [text(" " * (MAX_BLANK_CHARS + 1))]),
        ([Thinking("a"), Thinking("b"), Text("\n"), Text("c")], [thinking("ab"), text("\nc")]),
        ([Thinking("a"), Text("\n"), Thinking("b"), Text("c")], [thinking("ab"), text("c")]),
        ([Thinking("a"), Text("b"), Thinking("c")], [thinking("a"), text("b"), thinking("c")]),
        (
            [
                Thinking("a"),
                Text("\n\n"),
                CallStart(0, "f"),
                CallArguments(0, '{"a":'),
                CallArguments(0, "1}"),
            ],
            [thinking("a"), use("f", a=1)],
        ),
        ([CallStart(0, "f"), CallStart(1, "f"), CallArguments(1, "{}")], [use("f"), use("f")]),
    ],
)
def test_parts_of_a_kind_are_one_block(parts, expected):
    assert blocks_of(parts) == expected


def test_thinking_that_is_not_shown_is_in_its_signature():
    parts = [Thinking("a"), Thinking("b"), Text("c")]
    signature = text_signature("ab")
    assert blocks_of(parts, shows_thinking=False) == [
        {"type": "thinking", "thinking": "", "signature": signature},
        text("c"),
    ]
    deltas = [event["delta"] for event in events_of(parts, shows_thinking=False) if "delta" in event]
    assert deltas == [
        {"type": "signature_delta", "signature": signature},
        {"type": "text_delta", "text": "c"},
    ]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", {}),
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ('{"a": 1, "b": "cut of', {"a": 1}),
        ('{"a": 1, "b', {"a": 1}),
        ("{", {}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ("{'a'", {"INVALID_JSON": "{'a'"}),
        ('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}),
        ('{"a": 1e999}', {"INVALID_JSON": '{"a": 1e999}'}),
        ("[" * 5000, {"INVALID_JSON": "[" * 5000}),
    ],
)
def test_the_input_of_a_call_is_what_is_complete(written, expected):
    assert parsed_input(written) == expected


WORDS = st.text("ab \né", min_size=1, max_size=6)
CALLS = st.dictionaries(WORDS, WORDS | st.integers() | st.none(), max_size=3)
ANSWERS = st.lists(WORDS.map(Text) | WORDS.map(Thinking) | CALLS, max_size=5)


@st.composite
def cut_answers(draw):
    """Return an answer's parts, twice: undivided, and divided anyhow."""
    whole, divided = [], []
    for index, item in enumerate(draw(ANSWERS)):
        if isinstance(item, dict):
            written = json.dumps(item)
            whole += [CallStart(index, "f"), CallArguments(index, written)]
            divided += [
                CallStart(index, "f"),
                *(CallArguments(index, text) for text in draw(cuts(written))),
            ]
        else:
            whole.append(item)
            divided += map(type(item), draw(cuts(item.text)))
    return whole, divided


@st.composite
def cuts(draw, written):
    places = sorted(draw(st.sets(st.integers(1, max(1, len(written) - 1)), max_size=4)))
    bounds = [0, *(place for place in places if place < len(written)), len(written)]
    return [written[start:end] for start, end in pairwise(bounds)]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(cut_answers(), st.booleans())
def test_content_does_not_depend_on_how_an_answer_is_divided(answer, shows_thinking):
    whole, divided = answer
    assert blocks_of(divided, shows_thinking=shows_thinking) == blocks_of(
        whole, shows_thinking=shows_thinking
    )


@settings(max_examples=200, deadline=None, derandomize=True)
@given(cut_answers(), st.booleans())
def test_blocks_are_opened_and_closed_one_after_the_other(answer, shows_thinking):
    open_index, blocks = None, 0
    for event in events_of(answer[1], shows_thinking=shows_thinking):
        match event["type"]:
            case "content_block_start":
                assert (open_index, event["index"]) == (None, blocks)
                open_index, blocks = blocks, blocks + 1
            case "content_block_delta":
                assert event["index"] == open_index
            case "content_block_stop":
                assert event["index"] == open_index
                open_index = None
    assert open_index is None
