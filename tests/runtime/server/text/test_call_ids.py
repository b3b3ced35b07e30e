"""Ids of tool calls: those of any client are made such that Mistral's templates take them."""

import re

import pytest

from wisp_runtime.server.text.call_ids import with_call_ids
from wisp_runtime.server.text.template_messages import ChatTemplate

MISTRAL = ChatTemplate(
    "{%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception('') }}{%- endif %}",
    {},
)
QWEN = ChatTemplate("{%- for tool_call in message.tool_calls %}{{- tool_call.arguments | tojson }}", {})


def history(*ids):
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": {}}} for id in ids]
    results = [{"role": "tool", "tool_call_id": id, "content": "1"} for id in ids]
    return [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *results,
    ]


@pytest.mark.parametrize(
    "given", ["toolu_84ed7d2b71ce4c1eaf5b9f0a", "call_1", "", "a-b_c.d9x", "é" * 9, "x" * 5000]
)
def test_a_call_and_its_result_get_one_id_of_nine_letters_or_digits(given):
    _, answer, result = with_call_ids(history(given), MISTRAL)
    assert answer["tool_calls"][0]["id"] == result["tool_call_id"]
    assert re.fullmatch("[a-zA-Z0-9]{9}", result["tool_call_id"])
    assert with_call_ids(history(given), MISTRAL)[2] == result


def test_ids_that_differ_stay_different_and_short_ones_stay():
    _, answer, *_ = with_call_ids(history("call_1", "call_2", "aB3456789"), MISTRAL)
    ids = [call["id"] for call in answer["tool_calls"]]
    assert len(set(ids)) == 3
    assert ids[2] == "aB3456789"


def test_messages_are_not_changed_for_other_templates_nor_in_place():
    messages = history("call_1")
    assert with_call_ids(messages, QWEN) is messages
    with_call_ids(messages, MISTRAL)
    assert messages == history("call_1")


def test_a_call_without_an_id_is_left_to_the_template():
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
    assert with_call_ids([message], MISTRAL) == [message]
