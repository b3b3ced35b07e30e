"""Formats that a request prescribes: each becomes a grammar, or a 400 that names the field and the reason."""

import asyncio
import json
import re
import time

import pytest
from llguidance import LLMatcher, LLTokenizer

from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.parsing.tools import MAX_TOOLS
from wisp_runtime.server.structured import checks as grammar_checks
from wisp_runtime.server.structured.checks import GrammarChecks
from wisp_runtime.server.structured.structure import WHITESPACE, Structure

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
BODIES = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETE: {"model": "tiny", "prompt": "hi"},
}
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CLOSED = OBJECT | {"additionalProperties": False}
NESTED = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "or": {"anyOf": [{"$ref": "#/$defs/City"}, OBJECT]}},
    "required": ["city", "or"],
    "$defs": {"City": OBJECT},
}
EXTENDED = {
    "allOf": [{"$ref": "#/$defs/City"}, {"properties": {"b": {"const": 2}}}],
    "$defs": {"City": OBJECT},
}
TAG = {"begin": "<f=a>", "schema": OBJECT, "end": "</f>"}
TAGS = {"type": "structural_tag", "structures": [TAG], "triggers": ["<f"]}


def json_schema(schema, **fields):
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema} | fields}}


def outputs(**fields):
    return {"structured_outputs": fields}


def many_properties(count, **fields):
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}} | fields


def follows(grammar, text):
    """Return whether a text is complete by a grammar."""
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"response_format": {"type": "json_object"}}, ['{"b": []}', "{}"], ["[]", "1", "{"]),
        ({"response_format": {"type": "json_object", "schema": OBJECT}}, ['{"a": 1}'], ["{}"]),  # llama.cpp's
        (json_schema(OBJECT, name="x", strict=True), ['{"a": 1}'], ["{}", '{"a": "1"}', '{"a": 1, "b": 2}']),
        (
            json_schema(NESTED, strict=True),
            ['{"city": {"a": 1}, "or": {"a": 1}}'],
            ['{"city": {"a": 1, "b": 2}, "or": {"a": 1}}', '{"city": {"a": 1}, "or": {"a": 1, "b": 2}}'],
        ),
        (json_schema(EXTENDED, strict=True), ['{"a": 1, "b": 2}'], ["{}"]),
        (json_schema(OBJECT | {"additionalProperties": True}, strict=True), ['{"a": 1, "b": 2}'], ["{}"]),
        (json_schema(OBJECT, strict=False), ['{"a":1}', '{"a": 1, "b": 2}'], ["{}"]),
        (json_schema(CLOSED), ['{"a":1}', '{\n    "a": 1\n}'], ['{"a":1,"b":2}', '{"a":1} ']),
        (json_schema(True), ["1", '"a"', "[{}]"], ["", "a"]),
        ({"guided_json": CLOSED}, ['{"a":  1}'], ["{}"]),
        ({"guided_json": json.dumps(CLOSED)}, ['{"a": 1}'], ["{}"]),
        ({"guided_json": CLOSED, "guided_whitespace_pattern": " "}, ['{"a": 1}'], ['{"a":  1}']),
        ({"guided_regex": r"a/b\/c\d+"}, ["a/b/c12"], ["a/b/c", "xa/b/c1"]),
        ({"guided_regex": r"\d\w\s[\d-]"}, ["1_ -"], ["\u0661a -", "1é -", "1a\u00a0-", "1a \u0661"]),
        ({"guided_regex": r"[^\d]\D"}, ["é-"], ["\u0661-", "é\u0661"]),
        ({"guided_regex": "^(a|b)+$"}, ["abba"], ["", "c"]),
        ({"guided_choice": ["yes", 'n"o\\', "ä\nö"]}, ["yes", 'n"o\\', "ä\nö"], ["ye", "no"]),
        ({"guided_grammar": "start: A+\nA: /[ab]/"}, ["ab"], ["", "c"]),
        ({"guided_grammar": 'root ::= "a" | digits\ndigits ::= [0-9]+'}, ["a", "42"], ["b"]),  # GBNF
        (outputs(json=CLOSED), ['{"a": 1}'], ["{}"]),
        (outputs(json=CLOSED, disable_any_whitespace=True), ['{"a":1}'], ['{"a": 1}']),
        (outputs(json=CLOSED, whitespace_pattern=" "), ['{"a": 1}'], ['{"a":\n1}']),
        (outputs(json_object=True), ["{}"], ["[]"]),
        (outputs(regex="a+"), ["aa"], ["b"]),
        (outputs(choice=["a", "b"]), ["a"], ["c"]),
        (outputs(grammar='start: "x"'), ["x"], ["y"]),
        (outputs(structural_tag=TAGS), ['so: <f=a>{"a": 1}</f>, ok', "no tag"], ["<f=a>{}</f>", "<f=b>"]),
        (outputs(structural_tag=json.dumps(TAGS)), ['<f=a>{"a": 1}</f>'], ['<f=a>{"a": 1}']),
        ({"response_format": TAGS}, ['<f=a>{"a": 1}</f>'], ["<f=a>1</f>"]),
    ],
)
def test_a_prescribed_format_reaches_the_engine_as_a_grammar(api, server, path, fields, right, wrong):
    response = api.post(path, json=BODIES[path] | fields)
    assert response.status_code == 200, response.text
    (submit,) = server.engine.submitted
    for text in right:
        assert follows(submit.constraint, text), text
    for text in wrong:
        assert not follows(submit.constraint, text), text


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "text"}}, {"guided_json": None}, {"structured_outputs": None}]
)
def test_any_text_will_do_where_no_format_is_prescribed(api, server, path, fields):
    assert api.post(path, json=BODIES[path] | fields | {"guided_decoding_backend": "auto"}).status_code == 200
    assert server.engine.submitted[0].constraint is None


SCHEMA = "response_format.json_schema.schema"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"response_format": {"type": "sound"}}, "response_format.type", "'json_schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "Missing"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "'json_object'"),
        ({"response_format": {"type": "json_object", "schema": 1}}, "response_format.schema", "object"),
        (json_schema([]), SCHEMA, "object"),
        (json_schema({"type": "nonsense"}), SCHEMA, "Invalid type: nonsense, at #/type. Correct"),
        (
            json_schema({"anyOf": [{"properties": {"a/b": {"not": {}}}}]}),
            SCHEMA,
            "#/anyOf/0/properties/a~1b/not",
        ),
        (
            json_schema({"properties": {"not": {"enum": ["not"]}, "b": {"not": {}}}}),
            SCHEMA,
            ", at #/properties/b/not.",
        ),
        (
            json_schema({"not": {}, "if": {}}),
            SCHEMA,
            'keys: ["if", "not"], at #/not, #/if. Leave these keywords out',
        ),
        (json_schema({"not": {}, "x-guidance": {"lenient": True}}), SCHEMA, '"not"'),  # never lenient
        (json_schema({"type": "array", "uniqueItems": True}), SCHEMA, '"uniqueItems"'),
        (json_schema({"type": "string", "format": "iri"}), SCHEMA, "format: iri"),
        (json_schema({"oneOf": [{"type": "object"}, {"required": ["a"]}]}), SCHEMA, "or use anyOf"),
        (json_schema({"type": "string", "pattern": "(?=a)"}), SCHEMA, "look-around"),
        (json_schema({"$ref": "#/$defs/x"}), SCHEMA, "/$defs/x"),
        (json_schema({"$ref": "#"}), SCHEMA, "no text ever"),
        (json_schema({"$ref": "http://127.0.0.1/schema"}), SCHEMA, "127.0.0.1"),  # nothing is fetched
        (json_schema({"type": "integer", "minimum": 5, "maximum": 3}), SCHEMA, "minimum"),
        (json_schema({"const": "x" * (1 << 17)}), SCHEMA, "at most 131072"),
        (json_schema(many_properties(2501)), SCHEMA, "2501 properties"),
        (json_schema(many_properties(1000, additionalProperties=False)), SCHEMA, "require them"),
        ({"guided_json": '{"a'}, "guided_json", "no JSON"),
        ({"guided_json": '{"a":' * 990 + "1" + "}" * 990}, "guided_json", "recursion"),
        ({"guided_json": '{"const": "\\ud800"}'}, "guided_json", "escape"),
        ({"guided_json": "[1]"}, "guided_json", "object"),
        ({"guided_regex": "("}, "guided_regex", "'guided_regex': regex parse error: unclosed"),
        ({"guided_regex": r"\bfoo"}, "guided_regex", "word boundary"),
        ({"guided_regex": ""}, "guided_regex", "at least 1"),
        ({"guided_choice": []}, "guided_choice", "at least 1"),
        ({"guided_choice": ["a", 1]}, "guided_choice.1", "string"),
        ({"guided_grammar": "start: nobody"}, "guided_grammar", "nobody"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar", "no GBNF"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend", "'guidance'"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "'guided_json'"),
        ({"guided_whitespace_pattern": " ", "guided_regex": "a"}, "guided_whitespace_pattern", "JSON"),
        (outputs(), "structured_outputs", "prescribes no format"),
        (outputs(json_object=False), "structured_outputs", "prescribes no format"),
        (outputs(regex="a", choice=["a"]), "structured_outputs.choice", "'structured_outputs.regex'"),
        (outputs(jsonn={}), "structured_outputs.jsonn", "Unknown"),
        (outputs(json={"not": {}}), "structured_outputs.json", '"not"'),
        (outputs(disable_additional_properties=True), "structured_outputs.disable_additional_properties", ""),
        (outputs(structural_tag=TAGS | {"triggers": ["x"]}), "structured_outputs.structural_tag", "trigger"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "both"),
        (json_schema({}) | {"guided_regex": "a"}, "guided_regex", "both"),
    ],
)
def test_a_format_that_cannot_be_followed_is_refused_by_field_and_reason(
    api, server, path, fields, param, says
):
    response = api.post(path, json=BODIES[path] | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert says in error["message"]
    assert len(error["message"]) < 1000
    assert server.engine.submitted == []


@pytest.mark.parametrize("grammar", ["start: nobody", "root ::= ("], ids=["Lark", "GBNF"])
def test_a_grammar_that_is_none_has_one_code_in_either_notation(api, grammar):
    error = api.post(COMPLETE, json=BODIES[COMPLETE] | {"guided_grammar": grammar}).json()["error"]
    assert error["code"] == "invalid_grammar"


def test_a_grammar_of_special_tokens_is_left_to_the_engine(api, server):
    body = BODIES[COMPLETE] | {"guided_grammar": 'start: "a" <|tool_call|>'}
    assert api.post(COMPLETE, json=body).status_code == 200
    assert "<|tool_call|>" in server.engine.submitted[0].constraint


@pytest.mark.parametrize(
    ("choice", "call_is_right", "text_is_right"),
    [("auto", True, True), ("required", True, False), ("none", False, True)],
)
def test_beside_tools_an_answer_is_calls_or_a_text_in_the_format(
    api, server, choice, call_is_right, text_is_right
):
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = BODIES[CHAT] | json_schema(CLOSED) | {"tools": tools, "tool_choice": choice}
    response = api.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    grammar = server.engine.submitted[0].constraint
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert follows(grammar, call) == call_is_right
    assert follows(grammar, '{"a": 1}') == text_is_right
    assert not follows(grammar, "Hello")


def test_all_choices_of_a_request_share_its_grammar(api, server):
    body = BODIES[COMPLETE] | {"prompt": ["a", "b"], "n": 2, "guided_regex": "a"}
    assert api.post(COMPLETE, json=body).status_code == 200
    assert len({submit.constraint for submit in server.engine.submitted}) == 1
    assert len(server.engine.submitted) == 4


def test_a_stream_of_a_refused_format_is_an_error_and_no_stream(api):
    response = api.post(CHAT, json=BODIES[CHAT] | {"guided_regex": "(", "stream": True})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"


def test_a_schema_at_which_the_library_panics_is_refused_in_our_words(api):
    response = api.post(CHAT, json=BODIES[CHAT] | json_schema({"type": "object", "required": "é" * 300}))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_grammar")
    message = response.json()["error"]["message"]
    assert message.startswith("No answer can be held to 'response_format.json_schema.schema': the compiler")
    assert "panic" not in message
    assert len(message) < 300


def test_a_grammar_that_takes_too_long_is_refused_and_others_wait_for_their_turn(monkeypatch):
    monkeypatch.setattr(grammar_checks, "MAX_CHECK_S", 0.05)
    monkeypatch.setattr(grammar_checks, "MAX_QUEUE_S", 0.01)
    monkeypatch.setattr(grammar_checks, "CHECKED_AT_A_TIME", 1)
    monkeypatch.setattr(grammar_checks, "why_refused", lambda _: time.sleep(0.3) or "")

    async def check():
        checks = GrammarChecks()
        with pytest.raises(ApiError, match=r"more than 0\.05 s") as refusal:
            await checks.check(Structure("guided_regex", "{}"))
        assert (refusal.value.status, refusal.value.param) == (400, "guided_regex")
        with pytest.raises(ApiError, match="try again") as refusal:
            await checks.check(Structure("guided_regex", "{}"))
        assert refusal.value.status == 503
        checks.close()

    asyncio.run(check())


def test_a_sound_grammar_is_checked_once_and_an_unsound_one_each_time(monkeypatch):
    checked, sound, unsound = [], '{"grammars": [{}]}', '{"grammars": [{"1": 1}]}'
    monkeypatch.setattr(
        grammar_checks, "why_refused", lambda text: checked.append(text) or "bad" * ("1" in text)
    )

    async def check():
        checks = GrammarChecks()
        for _ in range(2):
            await checks.check(Structure("guided_regex", sound))
            with pytest.raises(ApiError):
                await checks.check(Structure("guided_regex", unsound))
        checks.close()

    asyncio.run(check())
    assert checked == [sound, unsound, unsound]


def test_the_grammars_of_the_largest_request_are_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr(grammar_checks, "why_refused", lambda text: checked.append(text) or "")

    async def check():
        checks = GrammarChecks()
        for _ in range(2):
            for number in range(
                MAX_TOOLS + 2
            ):  # and the grammar of all, and that of another format beside it
                await checks.check(Structure("tools", f"[{number}]"))
        checks.close()

    asyncio.run(check())
    assert len(checked) == MAX_TOOLS + 2


def test_the_space_of_json_is_bounded():
    assert re.fullmatch(WHITESPACE, "\n" + " " * 39)
    assert not re.fullmatch(WHITESPACE, " " * 41)
