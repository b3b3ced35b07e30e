"""Parsers of tool markups: calls that models write, hostile markup, and any division of an answer."""

from __future__ import annotations

import os
import random
import time

import pytest
from hostile_markup import check_order, division, hostile_answer, parse
from tool_answers import ANSWERS, TOOLS, ToolAnswer, calls_of, text_of

from wisp_runtime.errors import ConfigError
from wisp_runtime.server.answers.parts import MAX_NAME_CHARS, CallArguments, CallStart, Text, Thinking
from wisp_runtime.server.answers.tools.registry import FORMATS, format_of

CUTS = int(os.environ.get("WISP_TEST_TOOL_CUTS", "3000"))
SEED = int(os.environ.get("WISP_TEST_TOOL_SEED", "17"))


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_calls_text_and_thinking_are_found_in_answers_of_every_family(answer: ToolAnswer) -> None:
    parts = parse(answer.format, [answer.raw])
    assert tuple(calls_of(parts)) == answer.calls
    assert (text_of(parts), text_of(parts, Thinking)) == (answer.text, answer.thinking)
    assert parse(answer.format, answer.raw) == parts  # a character at a time


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_has_the_same_parts_however_it_is_divided(name: str) -> None:
    source = random.Random(SEED)
    for _ in range(CUTS // len(FORMATS) // 4):
        raw = hostile_answer(source, name)
        parts = parse(name, [raw])
        check_order(parts)
        for _ in range(4):
            texts = division(raw, source)
            assert parse(name, texts) == parts, texts


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "harmony"])
def test_an_answer_without_a_call_is_text_exactly_as_written(name: str) -> None:
    source, texts = random.Random(SEED), 0
    for _ in range(400):
        raw = hostile_answer(source, name)
        parts = parse(name, raw)
        if not any(isinstance(part, CallStart) for part in parts):
            assert text_of(parts) == raw
            texts += 1
    assert texts > 40


@pytest.mark.parametrize("name", FORMATS)
def test_random_characters_never_raise(name: str) -> None:
    source = random.Random(SEED)
    alphabet = "<|>[](){}=\"'\\/,:; \n\t\x00aé🏔\ud800tool_calparmen09.-+eE"
    for _ in range(300):
        check_order(parse(name, ["".join(source.choices(alphabet, k=source.randrange(1, 200)))]))


@pytest.mark.parametrize(
    ("name", "raw", "parts"),
    [
        # unfinished markup is text until its call is certain, and then a call cut short
        ("hermes", 'So: <tool_call>\n{"name": "f", "argu', [Text('So: <tool_call>\n{"name": "f", "argu')]),
        (
            "hermes",
            'So: <tool_call>\n{"name": "f", "arguments": {"a": "}',
            [Text("So:"), CallStart(0, "f"), CallArguments(0, '{"a": "}')],
        ),
        ("hermes", "a < b <tool_", [Text("a < b <tool_")]),
        ("hermes", "the `<tool_call>` tag", [Text("the `<tool_call>` tag")]),
        # arguments that are a text, null or missing; a raw newline in a string
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
            [CallStart(0, "f"), CallArguments(0, '{"a": 1}')],
        ),
        ("hermes", '<tool_call>{"name": "f"}', [CallStart(0, "f"), CallArguments(0, "{}")]),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": null}',
            [CallStart(0, "f"), CallArguments(0, "{}")],
        ),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": "1\n2"}}',
            [CallStart(0, "f"), CallArguments(0, '{"a": "1\\n2"}')],
        ),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": [1]}',
            [Text('<tool_call>{"name": "f", "arguments": [1]}')],
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": "oops"}</tool_call>', None),
        ("hermes", '<tool_call>{"arguments": "oops", "name": "f"}}</tool_call>', None),
        # a brace too many belongs to the call, unless text follows
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": {}}}}\n</tool_call>\nSo.',
            [CallStart(0, "f"), CallArguments(0, '{"a": {}}'), Text("So.")],
        ),
        ("hermes", '<tool_call>{"name": "f"}}', [CallStart(0, "f"), CallArguments(0, "{}")]),
        ("hermes", '<tool_call>{"name": "f"}} x', [CallStart(0, "f"), CallArguments(0, "{}"), Text("} x")]),
        (
            "llama3_json",
            '{"name": "list_files", "parameters": {}}}',
            [CallStart(0, "list_files"), CallArguments(0, "{}")],
        ),
        # an opener inside an opener, and inside a string
        (
            "hermes",
            '<tool_call><tool_call>{"name": "f"}',
            [Text("<tool_call>"), CallStart(0, "f"), CallArguments(0, "{}")],
        ),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
            [CallStart(0, "f"), CallArguments(0, '{"a": "</tool_call>"}')],
        ),
        # without a marker: neither in the middle of a line, nor unknown names
        ("llama3_json", 'x {"name": "list_files", "parameters": {}}', None),
        ("llama3_json", '{"name": "nobody", "parameters": {}}', None),
        ("llama3_json", '{"parameters": {}, "name": "nobody"}', None),
        ("pythonic", "x [list_files()]", None),
        ("pythonic", "[nobody()]", None),
        ("pythonic", "[list_files(a=open('x'))]", None),
        ("pythonic", "[list_files(a=" + "[" * 100 + "]" * 100 + ")]", None),
        ("pythonic", "[list_files(a=1_0e999)]", None),
        ("mistral", "[TOOL_CALLS] or not", None),
        ("qwen3_coder", "<tool_call>\n<function=a b>\n", None),
        # a schema has the last word on types
        (
            "qwen3_coder",
            "<function=edit_file>\n<parameter=path>\n5\n</parameter>\n<parameter=lines>\nx\n</parameter>",
            [CallStart(0, "edit_file"), CallArguments(0, '{"path": "5", "lines": "x"')],
        ),
        ("harmony", "Hello", None),
        ("harmony", "<|channel|>ana", None),
    ],
)
def test_markup_at_its_edges(name: str, raw: str, parts: list[object] | None) -> None:
    assert parse(name, [raw]) == parse(name, raw) == ([Text(raw)] if parts is None else parts)


LONGEST = "n" * MAX_NAME_CHARS


@pytest.mark.parametrize(
    ("name", "markup"),
    [
        ("hermes", '<tool_call>{"name": "%s", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {}, "name": "%s"}</tool_call>'),
        ("llama3_json", '<|python_tag|>{"name": "%s", "parameters": {}}'),
        ("mistral", '[TOOL_CALLS][{"name": "%s", "arguments": {}}]'),
        ("mistral", "[TOOL_CALLS]%s[ARGS]{}"),
        ("qwen3_coder", "<tool_call>\n<function=%s>\n</function>\n</tool_call>"),
        ("harmony", "<|channel|>commentary to=functions.%s<|message|>{}<|call|>"),
    ],
)
def test_a_call_has_a_name_that_a_history_can_hold_or_is_text(name: str, markup: str) -> None:
    called = [CallStart(0, LONGEST), CallArguments(0, "{}")]
    assert parse(name, [markup % LONGEST]) == parse(name, markup % LONGEST) == called
    for unfit in ("", LONGEST + "n"):
        raw = markup % unfit
        as_text = [Text("{}" if name == "harmony" else raw)]
        assert parse(name, [raw]) == parse(name, raw) == as_text


@pytest.mark.parametrize("chars", [200, 250, 300, 500, 510, 520, 1000, 1020, 1030, 2000])
@pytest.mark.parametrize(
    ("name", "begin", "filler", "call"),
    [
        ("mistral", "[TOOL_CALLS]", "a ", "[TOOL_CALLS]f[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]f", " ", "[ARGS]{}"),
        ("qwen3_coder", "<function=f", " ", ">\n</function>"),
        ("pythonic", "[list_files", ".", "\n[list_files()]"),
        ("harmony", "<|channel|>commentary", " ", "<|message|>b<|end|>"),
        ("harmony", "<|channel|>c", "a ", "<|start|>assistant to=functions.f<|message|>{}<|call|>"),
    ],
)
def test_long_markup_is_given_up_at_one_place_however_it_is_divided(
    name: str, begin: str, filler: str, call: str, chars: int
) -> None:
    raw = begin + filler * (chars // len(filler)) + call + " x"
    parts = parse(name, raw)
    assert parse(name, [raw]) == parts
    for size in (7, 100):
        assert parse(name, [raw[at : at + size] for at in range(0, len(raw), size)]) == parts


@pytest.mark.parametrize("name", FORMATS)
def test_the_time_of_an_answer_grows_no_faster_than_its_length(name: str) -> None:
    filler = ('<tool_cal [TOOL < { [x( \\ " <| ]} ' * 30 + "\n") * 2
    openings = [answer.raw[: len(answer.raw) // 2] for answer in ANSWERS if answer.format == name]
    for opening in (*openings, ""):
        seconds = []
        for repeats in (2, 8):
            parser, begin = FORMATS[name].parser(TOOLS), time.process_time()
            for char in opening + filler * repeats:
                parser.push(char)
            parser.finish()
            seconds.append(time.process_time() - begin)
        assert seconds[1] < 4 * 4 * seconds[0] + 0.05, opening


def test_a_format_is_named_or_chosen_by_the_template() -> None:
    assert format_of("anything", "none") is None
    assert format_of(None) is None
    assert format_of("{{ messages }}") is None
    assert format_of(None, "mistral") is FORMATS["mistral"]
    with pytest.raises(ConfigError, match=r"hermez is no format .* Name one of auto, none, harmony"):
        format_of(None, "hermez")


@pytest.mark.parametrize(
    ("name", "template"),
    [
        # lines of templates as they come with the models
        ("hermes", r'''For each function call, return a json object within <tool_call></tool_call> XML tags:
            <tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>'''),
        ("qwen3_coder", r"<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"),
        ("mistral", "{{- '[TOOL_CALLS][' }}"),
        ("mistral", "{{- '[TOOL_CALLS]' + tool.function.name + '[ARGS]' + arguments }}"),
        ("llama3_json", """{{- 'Respond in the format {"name": function name, "parameters": dictionary of """
            """argument name and its value}.' }}"""),
        ("pythonic", "Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]"),
        ("pythonic", "Respond in the format [func_name1(params_name1=params_value1, params_name2"),
        ("harmony", "<|start|>assistant<|channel|>commentary to={{ recipient }} json<|message|>"),
        (None, "<start_of_turn>model\n"),  # Gemma 3
        (None, "<tool_call>{{ name }}\n<arg_key>{{ key }}</arg_key>"),  # GLM 4.5
    ],
)  # fmt: skip
def test_templates_show_their_format(name: str | None, template: str) -> None:
    assert format_of(template) is (FORMATS[name] if name else None)
