"""Log-probabilities of a message: of the tokens that its text is made of, and of no other."""

import random

import pytest
from tool_answers import TOOLS

from wisp_runtime.engine.transport.messages import TokenLogprobs
from wisp_runtime.server.answers import reasoning
from wisp_runtime.server.answers.parser import AnswerParser
from wisp_runtime.server.answers.parts import Text
from wisp_runtime.server.answers.tools.registry import FORMATS
from wisp_runtime.server.api.responses.text_logprobs import TextLogprobs
from wisp_runtime.server.text.deltas import TextDelta

LOGPROBS = TokenLogprobs(-0.5, ())


class Names:
    """Names of tokens: their ids."""

    def chat_token(self, token, _logprob):
        return f"{token}"


def named(tokens, thinking, tools):
    """Return the text of an answer of ``tokens``, and the numbers of those that are reported with it."""
    reasoner = reasoning.format_of(None, thinking)
    parser = AnswerParser(
        reasoner.parser("<s>") if reasoner else None, FORMATS[tools].parser(TOOLS), thinking_loop=None
    )
    logprobs, texts, numbers, begin = TextLogprobs(Names()), [], [], 0
    deltas = []
    for number, token in enumerate(tokens):
        deltas.append(TextDelta(token, None, number, LOGPROBS, begin=begin))
        begin += len(token)
    for delta in [*deltas, TextDelta("", "stop", begin=begin)]:
        for part, entries in logprobs.push(parser.push(delta)):
            assert not entries or isinstance(part, Text)
            texts += [part.text] if isinstance(part, Text) else []
            numbers += [int(entry.split(",")[0]) for entry in entries]
    return "".join(texts), numbers


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "Yes"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("tokens", "reported"),
    [
        (["<think>", "Hm", ".", "</think>", "\n\n", "Yes", "."], [5, 6]),
        (["Yes", " <", "b", "> ", "<", "think>"], [0, 1, 2, 3, 4, 5]),  # held back, but text
        (["Yes", "\n", "<tool_call>", CALL[11:-12], "</tool_call>"], [0]),
        ([CALL, "Yes"], [1]),
        (["<", "<tool_", "x"], [0, 1, 2]),
        (["", "", "é", "!"], [0, 1, 2, 3]),  # tokens that are parts of a character
        (["<think>", "Hm</think>\n\nYes", "."], [1, 2]),
    ],
)
def test_tokens_of_markers_and_of_thinking_are_not_those_of_the_text(tokens, reported):
    assert named(tokens, "think", "hermes")[1] == reported


@pytest.mark.parametrize("tools", ["hermes", "mistral", "qwen3_coder", "llama3_json"])
@pytest.mark.parametrize("thinking", ["none", "think", "mistral"])
def test_however_an_answer_is_divided_each_token_of_its_text_is_reported_once(tools, thinking):
    source, marks = random.Random(17), reasoning.format_of(None, thinking)
    opening, closing = (marks.opening, marks.closing) if marks else ("<think>", "</think>")
    fragments = [opening, closing, "Yes", " ", "\n", "<", "[", "{", "a", opening[:3], "[TOOL_CALLS]f[ARGS]{}"]
    fragments += [CALL, CALL[:9], "<function=f>\n</function>", '<|python_tag|>{"name": "f"}', "é"]
    for _ in range(150):
        raw = "".join(source.choices(fragments, k=source.randrange(1, 9)))
        text, places = named(raw, thinking, tools)
        assert "".join(raw[place] for place in places) == text, raw
        tokens, begins, at = [], [], 0
        while at < len(raw):
            begins.append(at)
            tokens.append(raw[at : at + source.randrange(1, 4)])
            at += len(tokens[-1])
        shown = [
            number
            for number, (begin, token) in enumerate(zip(begins, tokens, strict=True))
            if any(begin <= place < begin + len(token) for place in places)
        ]
        assert named(tokens, thinking, tools) == (text, shown), tokens
