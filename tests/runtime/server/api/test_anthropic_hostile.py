"""Mutated bodies of Anthropic's paths: each is answered, or refused in Anthropic's format, and never a 5xx.

``WISP_TEST_EXAMPLES`` sets the number of bodies for each path.
"""

import copy
import os

import httpx
import pytest
from fake_engine import live_server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("WISP_TEST_EXAMPLES", "80"))
CONVERSATION = {
    "model": "tiny",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "wisp-text-YQ=="},
                {"type": "text", "text": "Yes."},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "1"}]}
            ],
        },
    ],
    "tools": [{"name": "f", "description": "F.", "input_schema": {"type": "object"}, "strict": True}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 20},
    "output_config": {"effort": "low"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}
REQUESTS = {
    "/v1/messages": CONVERSATION
    | {"max_tokens": 40, "stop_sequences": ["wor"], "temperature": 0.5, "top_k": 3, "stream": False},
    "/v1/messages/count_tokens": CONVERSATION,
}
# Values of other fields too: they are of the right type at the wrong place.
SAMPLES = [
    "",
    "text",
    "auto",
    "tool_result",
    "assistant",
    "\x00",
    "é" * 300,
    "../x",
    [],
    {},
    None,
    True,
    False,
]
NUMBERS = st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False, allow_infinity=False) | st.just(0)
VALUES = st.recursive(
    st.sampled_from(SAMPLES) | NUMBERS | st.text(max_size=8),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=8), values, max_size=3),
    max_leaves=6,
)


def places_of(value, place=()):
    """Yield the place of each value within a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield (*place, name)
        yield from places_of(item, (*place, name))


@st.composite
def mutated(draw, body):
    """Return a body of which one to three values are replaced, removed, doubled or joined by another."""
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        places = list(places_of(body))
        if not places:
            break
        *path, last = draw(st.sampled_from(places))
        parent = body
        for name in path:
            parent = parent[name]
        match draw(st.sampled_from(["replace", "remove", "double", "add"])):
            case "remove":
                del parent[last]
            case "double" if isinstance(parent, list):
                parent.append(copy.deepcopy(parent[last]))
            case "add" if isinstance(parent, dict):
                parent[draw(st.text(max_size=8))] = draw(VALUES)
            case _:
                parent[last] = draw(VALUES)
    return body


@pytest.fixture(scope="module")
def client(tiny_model):
    with live_server(tiny_model) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.mark.parametrize("path", REQUESTS)
def test_a_mutated_body_is_answered_or_refused_in_anthropics_format(client, path):
    statuses = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(mutated(REQUESTS[path]))
    def check(body):
        answer = client.post(path, json=body)
        statuses.add(answer.status_code)
        if answer.status_code == 200:
            return
        assert answer.status_code in (400, 404, 413), answer.text
        error = answer.json()
        assert (error["type"], error["request_id"]) == ("error", answer.headers["request-id"])
        assert error["error"]["message"]

    check()
    assert {200, 400} <= statuses
