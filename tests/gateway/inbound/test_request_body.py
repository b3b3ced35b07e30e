"""The facts that the gateway reads from a body without parsing it, and the splice of its model."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_gateway.errors import BadRequest, NotJson
from wisp_gateway.inbound.request_body import MAX_PARSED_BYTES, parse


def body_of(indent: int | None = None, **fields):
    return parse(json.dumps(fields, indent=indent).encode())


@given(
    st.text(max_size=20),
    st.text(min_size=1, max_size=20),
    st.dictionaries(st.text(max_size=20), st.integers()),
)
def test_a_spliced_body_is_the_same_but_for_its_model(name, served, others):
    others = {key: value for key, value in others.items() if key != "model"}
    for fields in ({"model": name, **others}, {**others, "model": name}, others):
        body = parse(json.dumps(fields).encode()).addressable()
        for known_as in (served, f"{name}!", served):
            assert json.loads(body.named(known_as)) == {**fields, "model": known_as}


def test_a_body_that_has_the_pods_name_is_not_touched():
    raw = b'{"model" : "m\\u00e4",  "seed": 1.50}'
    assert parse(raw).addressable().named("mä") is raw


@pytest.mark.parametrize(
    ("fields", "sequences"),
    [
        ({"prompt": "x"}, 1),
        ({"messages": [{"role": "user", "content": "x"}], "n": 128}, 128),
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": [1, 2, 3]}, 1),  # token ids of one prompt
        ({"prompt": [[1, 2], [3], [4]], "n": 2}, 6),
        ({"prompt": ["a", [1, 2], "b", [3]]}, 4),
        ({"prompt": []}, 1),
        ({"prompt": None, "n": None}, 1),
        ({"n": 0}, 1),
        ({"n": -5}, 1),
        ({"n": 10**30}, 1),  # the pod refuses it
        ({"n": "7"}, 1),
        ({"prompt": ["a", "b"], "n": 2, "best_of": 5}, 10),
        ({"prompt": "a", "n": 3, "best_of": None}, 3),
        ({"input": ["a", "b", [1, 2]]}, 3),
        ({"input": [1, 2, 3]}, 1),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}] * 3}, 1),  # Responses
        ({"query": "a", "documents": ["a", "b", "c"]}, 3),
        ({"query": "a", "documents": [{"text": "a"}, {"text": "b"}]}, 2),
        ({"messages": [], "documents": [{"text": "a"}, {"text": "b"}]}, 1),  # a chat template's
        ({"queries": "a", "items": ["a", "b"]}, 2),
        ({"text_1": "a", "text_2": ["a", "b"]}, 2),
    ],
)
def test_sequences_are_choices_times_prompts(fields, sequences):
    assert body_of(**fields).sequences == sequences


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"prompt": "x", "max_tokens": 10}, 10),
        ({"messages": [], "max_completion_tokens": 10, "n": 3}, 30),
        ({"prompt": ["a", "b", "c"], "max_tokens": 10}, 30),
        ({"prompt": [[1, 2], [3]], "max_tokens": 10, "n": 2, "best_of": 5}, 100),
        ({"prompt": [1, 2, 3], "max_tokens": 10}, 10),
        ({"input": "x", "max_output_tokens": 10}, 10),
        ({"prompt": ["a", "b"]}, 1024),
        ({"prompt": "x", "max_tokens": None}, 512),
    ],
)
def test_answers_are_bounded_by_choices_times_prompts(fields, tokens):
    assert body_of(**fields).max_answer_tokens == tokens


@pytest.mark.parametrize(("stream", "is_stream"), [(True, True), (False, False), (1, False), ("true", False)])
def test_only_true_is_a_stream(stream, is_stream):
    assert body_of(stream=stream).is_stream is is_stream


@pytest.mark.parametrize("value", [5, "", None, ["m"], {"name": "m"}, "m" * 2000])
def test_a_model_that_is_no_name_is_refused(value):
    with pytest.raises(BadRequest, match="must name a model"):
        body_of(model=value).model(is_named_by_path=False)


def test_a_long_body_is_scanned_and_not_parsed():
    """What a scan cannot see, here a number of two points, is left to the pod."""
    long = b'{"model": "m", "prompt": "' + b"x" * MAX_PARSED_BYTES + b'", "seed": 1.2.3}'
    assert parse(long).model(is_named_by_path=False) == "m"
    with pytest.raises(NotJson):
        parse(b'{"model": "m", "seed": 1.2.3}')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"a": [' + b"{}," * 20_000 + b"0]}", "16384 objects"),
        (b'{"a": ' + b"[" * 40_000, "64 deep"),
        (b'{"model": "a", "model": "b"}', "'model' twice"),
        (b'{"model": "a"} {}', "Extra data"),
    ],
)
def test_what_is_over_a_limit_or_ambiguous_is_refused(text, says):
    with pytest.raises(NotJson, match=says):
        parse(text)
