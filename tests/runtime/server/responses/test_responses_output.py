"""Parts of an answer as items and events: each event is valid, and together they are the final response."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.server.answers.parts import AnswerDelta, CallArguments, CallStart, Text, Thinking
from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.api.generation import Choice
from wisp_runtime.server.api.responses.answer import Answer
from wisp_runtime.server.api.responses.output import Output
from wisp_runtime.server.api.responses.resource import response_head
from wisp_runtime.server.parsing.responses.items import ReasoningItem
from wisp_runtime.server.parsing.responses.request import ResponsesRequest
from wisp_runtime.server.text.stop import StopStrings

EVENTS = TypeAdapter(ResponseStreamEvent)
THINK, SAY, CALL = Thinking("Hm. "), Text("Hello"), (CallStart(0, "f"), CallArguments(0, '{"a": 1}'))
MESSAGE = [
    "added:message",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
]
REASONING = ["added:reasoning", "content_part.added", "reasoning_text.delta", "reasoning_text.done"]
REASONING += ["content_part.done", "done:reasoning"]
SUMMARY = ["added:reasoning", "reasoning_summary_part.added", "reasoning_summary_text.delta"]
SUMMARY += ["reasoning_summary_text.done", "reasoning_summary_part.done", "done:reasoning"]
CALLED = ["added:function_call", "function_call_arguments.delta", "function_call_arguments.done"]


def answer_of(*, is_summarized=False, is_encoded=False, **fields):
    """Return an empty answer to a minimal request with ``fields``."""
    request = ResponsesRequest(model="m", input="hi", **fields)
    choice = Choice(Submit("r", (1, 2), 9, SamplingParams()), StopStrings(()))
    output = Output(None, is_summarized=is_summarized, is_encoded=is_encoded, namespaces={})
    head = response_head(request, "resp_1", "m", SamplingParams())
    return Answer(head, choice, output, is_queued=False)


def played(answer, deltas):
    """Return the answer's events as objects, each valid for the official client."""
    events = [*answer.create(), *(event for delta in deltas for event in answer.push(delta))]
    return [checked(event, number) for number, event in enumerate(events)]


def checked(event, number):
    name, data = event.sse(number).decode().removesuffix("\n\n").split("\n")
    fields = json.loads(data.removeprefix("data: "))
    assert name == f"event: {fields['type']}"
    EVENTS.validate_python(fields)
    return fields


def short(event):
    """Return an event's type, and of items also theirs."""
    kind = event["type"].removeprefix("response.")
    if kind.startswith("output_item."):
        return f"{kind.removeprefix('output_item.')}:{event['item']['type']}"
    return kind


@pytest.mark.parametrize(
    ("parts", "options", "expect"),
    [
        ([SAY], {}, [*MESSAGE, "done:message"]),
        ([THINK, SAY], {}, [*REASONING, *MESSAGE, "done:message"]),
        ([THINK, SAY], {"is_summarized": True}, [*SUMMARY, *MESSAGE, "done:message"]),
        ([*CALL], {}, [*CALLED, "done:function_call"]),
        ([SAY, *CALL], {}, [*MESSAGE, "done:message", *CALLED, "done:function_call"]),
        ([THINK, *CALL], {}, [*REASONING, *CALLED, "done:function_call"]),
        # An answer of nothing is a message of nothing.
        ([], {}, [name for name in MESSAGE if name != "output_text.delta"] + ["done:message"]),
    ],
)
def test_each_kind_of_part_has_its_events(parts, options, expect):
    events = played(answer_of(**options), [AnswerDelta(tuple(parts), "stop")])
    assert [short(event) for event in events] == ["created", "in_progress", *expect, "completed"]


PARTS = st.sampled_from([THINK, SAY, Text("é\n"), Thinking("\u2028"), "call"])
DELTAS = st.lists(st.lists(PARTS, max_size=4), max_size=6)


def numbered(groups):
    """Return deltas of parts; each ``call`` becomes a call with arguments."""
    deltas, calls = [], 0
    for group in groups:
        parts = []
        for part in group:
            if part == "call":
                parts += [
                    CallStart(calls, f"f{calls}"),
                    CallArguments(calls, '{"x":'),
                    CallArguments(calls, "1}"),
                ]
                calls += 1
            else:
                parts.append(part)
        deltas.append(AnswerDelta(tuple(parts)))
    return deltas


@given(DELTAS, st.sampled_from(["stop", "length", "tool_calls"]), st.booleans(), st.booleans())
def test_deltas_add_up_to_the_items_and_items_to_the_response(groups, finish, is_summarized, is_encoded):
    answer = answer_of(is_summarized=is_summarized, is_encoded=is_encoded)
    deltas = [*numbered(groups), AnswerDelta((), finish)]
    events = played(answer, deltas)
    final = events[-1]["response"]
    Response.model_validate(final)
    assert final == json.loads(answer.json())
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in done] == final["output"]
    assert [event["output_index"] for event in done] == list(range(len(done)))
    written = {}
    for event in events:
        if event["type"].endswith(".delta"):
            written[event["item_id"]] = written.get(event["item_id"], "") + event["delta"]
    for item in final["output"]:
        parts = [*item.get("content", ()), *item.get("summary", ())]
        text = item.get("arguments") or "".join(part["text"] for part in parts)
        assert written.get(item["id"], "") == text
    for part_type, kind in ((Text, "message"), (Thinking, "reasoning")):
        given_text = "".join(part.text for d in deltas for part in d.parts if isinstance(part, part_type))
        assert "".join(written.get(i["id"], "") for i in final["output"] if i["type"] == kind) == given_text
    assert (final["status"], final["completed_at"] is None) == (
        ("incomplete", True) if finish == "length" else ("completed", False)
    )


def test_thinking_that_is_encoded_is_read_again():
    answer = answer_of(is_encoded=True)
    events = played(answer, [AnswerDelta((THINK,)), AnswerDelta((SAY,), "stop")])
    added, done = (e["item"] for e in events if short(e) in ("added:reasoning", "done:reasoning"))
    assert "encrypted_content" not in added
    stateless = {name: done[name] for name in ("type", "encrypted_content")} | {"summary": []}
    assert ReasoningItem.model_validate(stateless).text == "Hm. "
    with pytest.raises(ValueError, match="another server"):
        _ = ReasoningItem(type="reasoning", encrypted_content="gAAAAABm").text


@pytest.mark.parametrize(
    ("status", "code"), [(500, "server_error"), (503, "server_error"), (429, "rate_limit_exceeded")]
)
def test_an_answer_that_fails_keeps_what_it_has(status, code):
    answer = answer_of()
    played(answer, [AnswerDelta((SAY,))])
    events = [
        checked(event, number) for number, event in enumerate(answer.fail(ApiError(status, "no", code="c")))
    ]
    assert [short(event) for event in events][-3:] == ["done:message", "error", "failed"]
    assert events[-2] | {"sequence_number": 0} == {
        "type": "error", "sequence_number": 0, "code": "c", "message": "no", "param": None,
    }  # fmt: skip
    assert events[-1]["response"]["error"] == {"code": code, "message": "no"}
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"
    assert answer.is_over
