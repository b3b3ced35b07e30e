"""Calls of one message apart, where a template writes the first alone: none is lost, each has its result."""

from __future__ import annotations

import pytest

from wisp_runtime.server.text.single_calls import with_single_calls
from wisp_runtime.server.text.template import CompiledTemplate
from wisp_runtime.server.text.template_messages import ChatTemplate

# As gpt-oss's template has them, in few words.
FIRST_ALONE = (
    "{% for message in messages %}{% if message.tool_calls %}{% set call = message.tool_calls[0].function %}"
    "[{{ message.content }}{{ message.thinking }}>{{ call.name }}]{% else %}({{ message.content }})"
    "{% endif %}{% endfor %}"
)
EACH = (
    "{% for message in messages %}{% for call in message.tool_calls %}{{ call.function.name }}{% endfor %}"
    "{% endfor %}"
)


def call(name, number=None):
    return {"id": number or name, "type": "function", "function": {"name": name, "arguments": {}}}


def result(number, text):
    return {"role": "tool", "tool_call_id": number, "content": text}


def asks(*calls, **fields):
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **fields}


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([asks(call("a"), thinking="Hm"), result("a", "1")], "[Hm>a](1)"),
        ([asks(call("a"), call("b"), thinking="Hm"), result("a", "1"), result("b", "2")], "[Hm>a](1)[>b](2)"),
        # results in another order, or with an id of no call
        ([asks(call("a"), call("b")), result("b", "2"), result("a", "1")], "[>a](1)[>b](2)"),
        ([asks(call("a"), call("b")), result("x", "3"), result("a", "1")], "[>a](1)[>b](3)"),
        ([asks(call("a"), call("b"), content="Look:")], "[Look:>a][>b]"),  # no result yet
        ([asks(call("a"), call("b", "a")), result("a", "1"), result("a", "2")], "[>a](1)(2)[>b]"),  # one id
        ([asks(call("a"), call("b") | {"id": None}), result(None, "2")], "[>a][>b](2)"),
        ([asks(call("a") | {"id": [1]}, call("b") | {"id": {}}), result([1], "2")], "[>a][>b](2)"),
        (
            [
                asks(call("a"), call("b")),
                result("a", "1"),
                result("b", "2"),
                {"role": "user", "content": "And?"},
                asks(call("c"), call("a", "a2")),
                result("c", "3"),
            ],
            "[>a](1)[>b](2)(And?)[>c](3)[>a]",
        ),
    ],
)
def test_every_call_is_written_with_its_result_behind_it(messages, text):
    template = ChatTemplate(FIRST_ALONE, {})
    assert CompiledTemplate(FIRST_ALONE, {}).render(with_single_calls(messages, template)) == text


def test_other_templates_get_the_messages_as_they_are():
    messages = [asks(call("a"), call("b"))]
    assert with_single_calls(messages, ChatTemplate(EACH, {})) is messages
    assert with_single_calls(messages, ChatTemplate(FIRST_ALONE + EACH, {})) is messages
