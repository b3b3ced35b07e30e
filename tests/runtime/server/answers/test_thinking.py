"""Thinking and text: markers, whitespace around them, detection; the division of an answer never matters.

``WISP_TEST_CUTS=100000`` divides as many answers, and ``make test`` a few thousand; ``WISP_TEST_RECORD``
names a file for the result.
"""

import json
import os
import random
import re
import time
from pathlib import Path

import pytest

from wisp_runtime.errors import ConfigError
from wisp_runtime.server.answers.parts import Text, Thinking
from wisp_runtime.server.answers.reasoning import FORMATS, NAMES, format_of
from wisp_runtime.server.answers.thinking import MAX_HELD_CHARS

CUTS = int(os.environ.get("WISP_TEST_CUTS", "4000"))
BY_NAME = {format.name: format for format in FORMATS}
PROMPT = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def merged(parts):
    result = []
    for part in parts:
        if result and type(result[-1]) is type(part):
            result[-1] = type(part)(result[-1].text + part.text)
        else:
            result.append(part)
    return result


def parse(deltas, format=BY_NAME["think"], prompt=PROMPT, calls=()):
    """Return the parts of an answer that comes in ``deltas``, neighbours of one kind joined."""
    parser = format.parser(prompt, call_openings=calls)
    parts = [part for delta in deltas for part in parser.push(delta)] + list(parser.finish())
    assert all(part.text for part in parts), "no part is empty"
    return merged(parts)


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", [Thinking("Hm."), Text("Yes.")]),  # Qwen3
        ("\n<think>Hm.</think>\nYes.", [Thinking("Hm."), Text("Yes.")]),  # GLM-4.5
        ("<think>\n\n</think>\n\nYes.", [Text("Yes.")]),  # no thinking at all
        ("<think>a\n\nb\n</think>c\n", [Thinking("a\n\nb"), Text("c\n")]),  # newlines within stay
        ("<think>  a </think>  b", [Thinking("  a "), Text("  b")]),  # spaces stay
        ("<think>Hm", [Thinking("Hm")]),  # never closed
        ("<think>Hm\n\n", [Thinking("Hm")]),
        ("<think>Hm</thi", [Thinking("Hm</thi")]),
        ("<think>a </thinking> </ think></think>b", [Thinking("a </thinking> </ think>"), Text("b")]),
        ("<think>", []),
        ("Yes.", [Text("Yes.")]),  # no marker
        ("\n\nYes.", [Text("\n\nYes.")]),
        (" \n", [Text(" \n")]),
        ("<thin", [Text("<thin")]),
        ("<think >no", [Text("<think >no")]),
        ("Write <think> first, then </think>.", [Text("Write <think> first, then </think>.")]),
        ("<think>a</think>b<think>c</think>d", [Thinking("a"), Text("b<think>c</think>d")]),
        ("<think>a<think>b</think>c", [Thinking("a<think>b"), Text("c")]),  # none within another
    ],
)
def test_thinking_begins_the_answer_and_ends_at_its_closing_marker(answer, parts):
    assert parse([answer]) == parts
    assert parse(answer) == parts, "character by character"


@pytest.mark.parametrize(
    ("name", "answer", "parts"),
    [
        ("mistral", "[THINK]a[/THINK]b", [Thinking("a"), Text("b")]),
        ("mistral", "First:[THINK]a[/THINK]b", [Text("First:"), Thinking("a"), Text("b")]),  # may follow text
        ("gemma4", "<|channel>thought\na\n<channel|>b", [Thinking("a"), Text("b")]),
        ("seed_oss", "<seed:think>a</seed:think>\nb", [Thinking("a"), Text("b")]),
        ("cohere", "<|START_THINKING|>a<|END_THINKING|>b", [Thinking("a"), Text("b")]),
    ],
)
def test_each_family_has_its_markers(name, answer, parts):
    assert parse([answer], BY_NAME[name]) == parts


@pytest.mark.parametrize(
    ("name", "ending", "begins"),
    [
        ("think", "<｜Assistant｜><think>\n", "thinking"),  # DeepSeek-R1
        ("think", "<|im_start|>assistant\n<think>\n", "thinking"),  # Qwen3.5
        ("think", "<SPECIAL_11>Assistant\n<think>\n\n", "thinking"),  # Nemotron Nano 2
        ("think", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "closed"),  # Qwen3, enable_thinking false
        ("think", "<|assistant|>\n<think></think>", "closed"),  # GLM-4.5
        ("think", "<｜Assistant｜></think>", "closed"),  # DeepSeek-V3.1
        (
            "think",
            "What is <think>?<|im_end|>\n<|im_start|>assistant\n",
            "open",
        ),  # in a message, not behind it
        ("think", "What is </think>?<|im_end|>\n<|im_start|>assistant\n", "open"),
        ("seed_oss", "<seed:bos>assistant\n<seed:think><seed:cot_budget_reflect>", "thinking"),  # budget of 0
        ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", "closed"),
        ("gemma4", "<|turn>model\n", "open"),
    ],
)
def test_the_end_of_the_prompt_shows_where_the_answer_begins(name, ending, begins):
    format = BY_NAME[name]
    parser = format.parser(f"<bos>Hello{ending}")
    assert ("closed" if parser is None else "thinking" if parser.is_thinking else "open") == begins


@pytest.mark.parametrize(
    ("begun", "begins"),
    [
        ("<think>\nHm", "thinking"),
        ("<think>Hm.</think>\nYes", "closed"),
        ("<think></think><think>", "thinking"),
        ("Yes, th", "open"),
    ],
)
def test_a_message_that_is_continued_may_have_begun_to_think(begun, begins):
    parser = BY_NAME["think"].parser(PROMPT + begun, begun)
    assert ("closed" if parser is None else "thinking" if parser.is_thinking else "open") == begins


def test_an_answer_within_thinking_needs_no_opening_marker():
    prompt = "<｜Assistant｜><think>\n"
    assert parse(["\nHm.\n</think>\n\nYes."], prompt=prompt) == [Thinking("Hm."), Text("Yes.")]
    assert parse(["Hm."], prompt=prompt) == [Thinking("Hm.")]
    assert parse("<think>\nHm.</think>Yes.", prompt=prompt) == [Thinking("Hm."), Text("Yes.")]  # repeated


# Lines of the templates of the models named.
@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{- '<think>\\n\\n</think>\\n\\n' }}", "think"),  # Qwen3
        ("{%- if '</think>' in content -%}{% set content = content.split('</think>')[-1] -%}", "think"),  # R1
        ("Write your thoughts between <think></think>", "think"),  # Granite 3.3
        ("{%- set think_begin_token      = '<seed:think>'             -%}", "seed_oss"),
        ("{{- '[THINK]' + block['thinking'] + '[/THINK]' }}", "mistral"),
        ("{{- '<|channel>thought\\n<channel|>' -}}", "gemma4"),
        ("<|START_THINKING|>{{message.reasoning_content}}<|END_THINKING|>", "cohere"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "harmony"),
        ("{{ '<|im_start|>' + message['role'] }}", None),  # SmolLM2
        (None, None),  # a base model
    ],
)
def test_the_template_shows_the_markers(template, name):
    format = format_of(template)
    assert (format.name if format else None) == name


def test_a_parser_is_chosen_by_name_or_refused_with_the_names_there_are():
    assert format_of("{{ messages }}", "mistral") is BY_NAME["mistral"]
    assert format_of("<think>", "none") is None
    assert len(set(NAMES)) == len(NAMES)
    with pytest.raises(ConfigError, match="no reasoning parser is called 'qwen9'; use one of: auto, none, "):
        format_of("<think>", "qwen9")


@pytest.mark.parametrize("run", [MAX_HELD_CHARS - 1, MAX_HELD_CHARS, MAX_HELD_CHARS + 1, 3 * MAX_HELD_CHARS])
def test_long_whitespace_is_held_back_up_to_a_bound_however_it_is_divided(run):
    before, within = " " * run + "<think>a</think>b", "<think>a" + "\n" * run + "</think>b"
    is_short = run <= MAX_HELD_CHARS
    assert parse(before) == parse([before]) == ([Thinking("a"), Text("b")] if is_short else [Text(before)])
    newlines = "\n" * max(0, run - MAX_HELD_CHARS)
    assert parse(within) == parse([within]) == [Thinking("a" + newlines), Text("b")]


CALLS = ("<tool_call>\n<function=", '<tool_call>\n{"name"')


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (
            "<think>Hm.\n<tool_call>\n<function=f>…",
            [Thinking("Hm."), Text("<tool_call>\n<function=f>…")],
        ),
        ('<think>Hm.<tool_call>\n{"name": "f"}', [Thinking("Hm."), Text('<tool_call>\n{"name": "f"}')]),
        ("<think>A <tool_call> …</think>b", [Thinking("A <tool_call> …"), Text("b")]),  # thinks about calls
        ("<think>A <tool_call>\n</think>b", [Thinking("A <tool_call>"), Text("b")]),
    ],
)
def test_thinking_ends_in_front_of_a_tool_call(answer, parts):
    assert parse([answer], calls=CALLS) == parse(answer, calls=CALLS) == parts


def reference(text, format, starts_open, calls):
    """Split a complete answer by regular expressions: the specification, as plainly as it can be said."""
    opening = re.escape(format.opening)
    closing = "|".join([re.escape(format.closing), *(f"(?={re.escape(call)})" for call in calls)])
    parts, is_open = [], starts_open
    if begin := re.match(rf"\s*{opening}", text):
        text, is_open = text[begin.end() :], True
    while True:
        if is_open:
            thinking, *rest = re.split(closing, text, maxsplit=1)
            parts.append(Thinking(thinking.strip("\n")))
            text = rest[0].lstrip("\n") if rest else ""
        written, *rest = re.split(opening, text, maxsplit=1) if format.may_reopen else [text]
        parts.append(Text(written))
        if not rest:
            break
        text, is_open = rest[0], True
    return merged([part for part in parts if part.text])


def test_the_division_of_an_answer_never_matters():
    random_of, began_s, chars = random.Random(17), time.process_time(), 0
    for number in range(CUTS):
        format = random_of.choice(FORMATS)
        opening, closing = format.opening, format.closing
        fragments = [opening, closing, opening[:-1], closing[:3], opening[1:], closing[-2:]]
        calls = random_of.choice([(), CALLS])
        fragments += ["<tool_call>", "\n<function=", '\n{"na', 'me"', *CALLS] if calls else []
        fragments += ["\n", "\n\n", " ", "a", "<", "</", "é", "word ", "</think>", "[", "|"]
        text = "".join(random_of.choices(fragments, k=random_of.randrange(12)))
        prompt = random_of.choice([PROMPT, PROMPT + opening])
        deltas, rest = [], text
        while rest:
            size = random_of.randrange(1, 6)
            deltas.append(rest[:size])
            rest = rest[size:]
        expected = reference(text, format, format.starts_open(prompt), calls)
        assert parse([text], format, prompt, calls) == expected, (number, format.name, text)
        assert parse(deltas, format, prompt, calls) == expected, (number, format.name, deltas)
        chars += len(text)
    if path := os.environ.get("WISP_TEST_RECORD"):
        found = {"answers": CUTS, "characters": chars, "differing": 0}
        row = {"what": "thinking, divided"} | found | {"cpu s": round(time.process_time() - began_s, 1)}
        with Path(path).open("a") as record:
            record.write(json.dumps(row) + "\n")


def test_text_is_only_held_back_while_it_may_begin_a_marker():
    parser = BY_NAME["think"].parser(PROMPT)
    steps = ["<th", "ink>\n", "Hm", ".\n", "</th", "at", " is", "</think>", "\n\n", "Y", "es <think>"]
    shown = ["", "", "Hm", ".", "", "\n</that", " is", "", "", "Y", "es <think>"]
    assert ["".join(part.text for part in parser.push(step)) for step in steps] == shown
