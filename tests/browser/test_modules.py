"""Modules of the page by themselves: tables of calls and results, run in the browser."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess

import pytest


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        ("formatCount", 1234567, "1,234,567"),
        ("formatCount", None, "–"),
        ("formatRate", 0, "0"),
        ("formatRate", 7.254, "7.25"),
        ("formatRate", 41.52, "41.5"),
        ("formatRate", 1240.4, "1,240"),
        ("formatBytes", 0, "0 B"),
        ("formatBytes", 1536, "1.5 KiB"),
        ("formatBytes", 150 << 30, "150 GiB"),
        ("formatBytes", 5 << 50, "5120 TiB"),  # the largest unit takes the rest
        ("formatSeconds", 0, "0 s"),
        ("formatSeconds", 0.0043, "4.3 ms"),
        ("formatSeconds", 0.34, "340 ms"),
        ("formatSeconds", 2.104, "2.10 s"),
        ("formatSeconds", 59.96, "60.0 s"),
        ("formatSeconds", 65, "1 min 5 s"),
        ("formatSeconds", 7383, "2 h 3 min"),
        ("formatRunning", 3, "3.0 s"),
        ("formatRunning", 60.2, "1 min 0 s"),
        ("formatShare", 0.046, "4.6%"),
        ("formatShare", 0.62, "62%"),
        ("formatProgress", 0.999, "99%"),  # 100% only once it is done
        ("formatProgress", 1, "100%"),
        ("formatMoment", None, "–"),
    ],
)
def test_a_value_is_written_as_people_read_it(call, function, value, text):
    assert call("format.js", f"m.{function}(argument)", value) == text


@pytest.mark.parametrize(
    ("part", "total", "text"),
    [
        (1.6 * 2**30, 18.9 * 2**30, "1.6 of 18.9 GiB"),
        (512 * 2**20, 2 * 2**30, "512 MiB of 2.0 GiB"),
        (0, 2**30, "0 B of 1.0 GiB"),
    ],
)
def test_memory_in_use_names_its_unit_once(call, part, total, text):
    assert call("format.js", "m.formatBytesOf(...argument)", [part, total]) == text


def test_marks_of_an_axis_have_seconds_only_between_minutes(call):
    assert [len(text) for text in call("format.js", "m.formatTimes([0, 60, 120])")] == [5, 5, 5]
    assert [len(text) for text in call("format.js", "m.formatTimes([0, 30, 60])")] == [8, 8, 8]


@pytest.mark.parametrize(
    ("chunks", "events"),
    [
        (["data: a\n\n"], [{"event": "message", "data": "a"}]),
        (
            ["da", "ta: a\n", "\ndata: b\n\n"],
            [{"event": "message", "data": "a"}, {"event": "message", "data": "b"}],
        ),
        (["event: wake\ndata: {}\n\n"], [{"event": "wake", "data": "{}"}]),
        (["data: 1\ndata: 2\n\n"], [{"event": "message", "data": "1\n2"}]),
        (
            ["data: a\r\n\r", "\ndata: b\r\n\r\n"],
            [{"event": "message", "data": "a"}, {"event": "message", "data": "b"}],
        ),
        ([": waking weights 62 %\n"], [{"comment": "waking weights 62 %"}]),
        (["data:  two spaces\n\n"], [{"event": "message", "data": " two spaces"}]),
        (["data: cut off"], []),  # an event that did not end is none
        (["event: alone\n\ndata: b\n\n"], [{"event": "message", "data": "b"}]),
    ],
)
def test_a_stream_is_read_as_events_wherever_it_is_divided(call, chunks, events):
    stream = """new ReadableStream({ start(controller) {
        for (const text of argument) controller.enqueue(new TextEncoder().encode(text));
        controller.close();
    } })"""
    assert call("sse.js", f"Array.fromAsync(m.readEvents(new Response({stream})))", chunks) == events


ANSWER = {"model": "m", "state": "done", "content": "42", "reasoning": "", "calls": [], "problem": None}
FAILED = ANSWER | {"state": "failed", "content": ""}
CALLING = ANSWER | {"content": "", "calls": [{"id": "c1", "name": "add", "arguments": '{"a":1}'}]}


def conversation(*turns, **fields):
    """Return a conversation of pairs of a text, or of results, and an answer."""
    rows = [
        {"text": "", "results": asked, "answers": [answer]}
        if isinstance(asked, list)
        else {"text": asked, "results": None, "answers": [answer]}
        for asked, answer in turns
    ]
    return {"title": "", "system": "", "parameters": {}, "models": ["m"], "turns": rows} | fields


USER, ASSISTANT = {"role": "user", "content": "why"}, {"role": "assistant", "content": "42"}
TOOL_CALLS = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}]


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        (conversation(("why", ANSWER)), [USER]),
        (conversation(("why", ANSWER), ("so", ANSWER)), [USER, ASSISTANT, {"role": "user", "content": "so"}]),
        (
            conversation(("why", ANSWER), system="Be brief."),
            [{"role": "system", "content": "Be brief."}, USER],
        ),
        # roles alternate although an answer failed
        (conversation(("why", FAILED), ("so", ANSWER)), [{"role": "user", "content": "why\n\nso"}]),
        (
            conversation(("why", CALLING), ([{"id": "c1", "name": "add", "content": "3"}], ANSWER)),
            [
                USER,
                {"role": "assistant", "content": "", "tool_calls": TOOL_CALLS},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
            ],
        ),
    ],
)
def test_a_conversation_is_sent_as_messages(call, value, messages):
    last = len(value["turns"]) - 1
    assert call("conversation/conversation.js", f"m.messagesOf(argument, {last}, 0)", value) == messages


@pytest.mark.parametrize(
    ("parameters", "fields"),
    [
        ({}, {}),
        ({"temperature": "0", "top_p": ""}, {"temperature": 0}),  # an empty field leaves the model's default
        ({"stop": "\nEND\n"}, {"stop": ["END"]}),
        (
            {"tools": '[{"type": "function"}]', "reasoning_effort": "low"},
            {"tools": [{"type": "function"}], "reasoning_effort": "low"},
        ),
    ],
)
def test_parameters_that_are_set_are_sent(call, parameters, fields):
    assert call("conversation/conversation.js", "m.parametersOf(argument)", parameters) == fields


def test_answers_that_ran_when_the_page_was_closed_are_interrupted(call):
    value = conversation(("a", ANSWER), ("b", ANSWER | {"state": "answering"}))
    after = call("conversation/conversation.js", "m.afterReload(argument)", value)
    assert [turn["answers"][0]["state"] for turn in after["turns"]] == ["done", "interrupted"]


def test_chunks_of_a_stream_fill_an_answer(call):
    deltas = [
        {"reasoning_content": "Hm."},
        {"content": "4"},
        {"content": "2"},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
    ]
    chunks = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks += [
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 9}},
    ]
    answer = call(
        "conversation/answer.js",
        "(answer => (argument.forEach(chunk => m.addChunk(answer, chunk)), answer))(m.newAnswer('m'))",
        chunks,
    )
    assert (answer["reasoning"], answer["content"], answer["finish"]) == ("Hm.", "42", "tool_calls")
    assert answer["calls"] == CALLING["calls"]
    assert answer["usage"] == {"prompt": 9, "cached": 0, "completion": 0, "reasoning": 0}


def test_a_fence_of_an_export_is_longer_than_any_within(call):
    value = conversation(
        ("why", CALLING), ([{"name": "add", "content": "```\n3\n```"}], ANSWER), system="Be\nbrief."
    )
    text = call("conversation/export.js", "m.markdownOf(argument)", value)
    assert text.startswith("# why\n\n> Be\n> brief.\n\n**You**\n\nwhy\n\n**m**\n")
    assert "````\n```\n3\n```\n````" in text


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Why is the sky blue?", "why-is-the-sky-blue.md"),
        ("?!", "conversation.md"),
        ("Über/alles", "über-alles.md"),
    ],
)
def test_a_file_is_named_after_the_conversation(call, title, name):
    assert (
        call("conversation/export.js", "m.fileNameOf(argument, 'md')", {"title": title, "turns": []}) == name
    )


BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": 'it\'s "so"\n$HOME'}],
    "top_k": 4,
    "stream": True,
}


@pytest.mark.parametrize("has_key", [True, False])
def test_a_snippet_in_python_calls_the_client_with_the_same_request(call, has_key):
    text = call(
        "snippets.js", "m.pythonOf(...argument)", [BODY, {"address": "http://h/v1", "hasKey": has_key}]
    )
    calls = {ast.unparse(node.func): node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}
    sent = {
        word.arg: ast.literal_eval(word.value) for word in calls["client.chat.completions.create"].keywords
    }
    assert sent.pop("extra_body") == {"top_k": 4}  # no argument of the official client
    assert sent == {name: value for name, value in BODY.items() if name != "top_k"}
    assert ("WISP_API_KEY" in text) == has_key


@pytest.mark.parametrize("has_key", [True, False])
def test_a_snippet_for_a_shell_sends_the_same_request(call, has_key):
    text = call("snippets.js", "m.curlOf(...argument)", [BODY, {"address": "http://h/v1", "hasKey": has_key}])
    printed = subprocess.run(
        ["sh", "-c", 'curl() { printf "%s\\0" "$@"; }\n' + text],
        env={"WISP_API_KEY": "sk-1"}, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    assert "http://h/v1/chat/completions" in printed
    assert json.loads(printed[printed.index("-d") + 1]) == BODY
    assert ("Authorization: Bearer sk-1" in printed) == has_key
    assert shlex.split(text)[0] == "curl"


@pytest.mark.parametrize(
    ("status", "error", "remedy", "is_of_key"),
    [
        (401, {"message": "No API key."}, "Enter a key", True),
        (503, {"code": "model_failed", "message": "It failed."}, "Models shows the reason", False),
        (400, {"param": "top_p", "message": "too large"}, "top_p", False),
        (502, None, "Try again.", False),
    ],
)
def test_a_refusal_has_a_remedy(call, status, error, remedy, is_of_key):
    problem = call(
        "conversation/problem.js",
        "m.problemOfError(argument.error, argument)",
        {"error": error, "status": status},
    )
    assert problem["what"]
    assert remedy in problem["remedy"]
    assert problem["isOfKey"] == is_of_key


def test_listeners_of_a_store_hear_each_change_until_they_leave(call):
    heard = call(
        "store.js",
        """(() => {
            const heard = [], store = m.createStore({ a: 1, b: 1 });
            const leave = store.subscribe(() => { heard.push(store.get()); leave(); });
            store.subscribe(() => heard.push("second"));
            store.set({ a: 2 });
            store.set({ a: 3 });
            return heard;
        })()""",
    )
    assert heard == [{"a": 2, "b": 1}, "second", "second"]


MARKDOWN = "# A\n\nSome *text* [link][1].\n\n- one\n- two\n\n```py\nx = 1\n```\n\n| a |\n|---|\n| 1 |\n\n[1]: https://example.org\n"


def test_markdown_that_grows_ends_as_if_it_had_come_at_once(call):
    blocks = "blocks.map(({ html, code, language }) => ({ html, code, language }))"
    grown, whole = call(
        "markdown/blocks.js",
        f"""(() => {{
            const show = blocks => {blocks}, growing = new m.MarkdownBlocks();
            for (let end = 1; end < argument.length; end += 3) growing.update(argument.slice(0, end), false);
            return [growing, new m.MarkdownBlocks()].map(one => show(one.update(argument, true)));
        }})()""",
        MARKDOWN,
    )
    assert grown == whole
    assert 'href="https://example.org"' in json.dumps(grown).replace("\\", "")
