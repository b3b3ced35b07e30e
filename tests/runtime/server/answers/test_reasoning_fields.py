"""``reasoning_effort`` and ``thinking_token_budget``, as the template of a model and the engine take them."""

import pytest

from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.parsing.reasoning import Reasoning, ReasoningSupport, reasoning_of
from wisp_runtime.server.text.template_messages import ChatTemplate

# Lines of the models' templates.
QWEN3 = (
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
)
R1 = "{{'<｜Assistant｜><think>\\n'}}"
GRANITE = "{%- elif thinking %} Write your thoughts between <think></think>"
V31 = "{%- if not thinking is defined -%}{%- set thinking = enable_thinking -%}{{'</think>'}}"
SEED = "{%- set think_begin_token = '<seed:think>' -%}{%- if thinking_budget == 0 %}"
GPT_OSS = '{%- set reasoning_effort = "medium" %}{{- "<|channel|>analysis" }}{{ message.thinking }}'
BOTH = "{% if enable_thinking %}<think>{{ reasoning_effort }}"
NO_THINKING = "{{ '<|im_start|>' + message['role'] }}"


def reason(template, effort=None, budget=None, **names):
    return reasoning_of(effort, budget, names, ReasoningSupport.of(ChatTemplate(template, {})))


@pytest.mark.parametrize(
    ("template", "fields", "names", "budget"),
    [
        (QWEN3, {}, {}, None),
        (QWEN3, {"effort": "none"}, {"enable_thinking": False}, None),
        (QWEN3, {"effort": "low"}, {"enable_thinking": True}, 1024),
        (QWEN3, {"effort": "high"}, {"enable_thinking": True}, None),
        (
            QWEN3,
            {"effort": "low", "enable_thinking": False},
            {"enable_thinking": False},
            1024,
        ),  # its own name stays
        (QWEN3, {"effort": "low", "budget": 9}, {"enable_thinking": True}, 9),  # the budget is more exact
        (QWEN3, {"budget": 0}, {}, 0),
        (QWEN3, {"budget": -1}, {}, None),  # vLLM's unlimited
        (R1, {"effort": "none"}, {}, 0),  # no switch
        (R1, {"effort": "minimal"}, {}, 256),
        (GRANITE, {"effort": "medium"}, {"thinking": True}, 4096),  # thinks only when told
        (GRANITE, {"budget": 100}, {"thinking": True}, 100),
        (V31, {"effort": "none"}, {"thinking": False, "enable_thinking": False}, None),
        (SEED, {"budget": 512}, {"thinking_budget": 512}, 512),
        (SEED, {"effort": "none"}, {"thinking_budget": 0}, 0),
        (GPT_OSS, {"effort": "low"}, {"reasoning_effort": "low"}, None),
        (BOTH, {"effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}, None),
        (BOTH, {"effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}, None),
        (NO_THINKING, {"effort": "none"}, {}, None),
        (NO_THINKING, {"budget": -1, "tone": "dry"}, {"tone": "dry"}, None),
    ],
)
def test_effort_and_budget_reach_the_template_or_the_engine(template, fields, names, budget):
    assert reason(template, **fields) == Reasoning(names, budget)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"effort": "low"}, "reasoning_effort"), ({"budget": 100}, "thinking_token_budget")],
)
def test_a_model_that_does_not_think_refuses_both_by_name(fields, param):
    with pytest.raises(ApiError) as raised:
        reason(NO_THINKING, **fields)
    assert (raised.value.status, raised.value.param, raised.value.code) == (
        400,
        param,
        "unsupported_parameter",
    )
    assert "leave it out" in raised.value.message
