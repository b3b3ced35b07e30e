"""Prompts that are echoed with log-probabilities: in complete responses, streams, several choices."""

import json

import pytest
from fake_engine import END, MAX_CONTEXT, START, tokens_of

from wisp_runtime.server.api import completions

COMPLETE = "/v1/completions"
SCORE = {"model": "tiny", "prompt": "abc", "echo": True, "logprobs": 1}


def streamed(api, body):
    """Return the choices of a stream, put together, by their index."""
    choices = {}
    response = api.post(COMPLETE, json=body | {"stream": True})
    for line in response.text.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        for chunk in json.loads(line.removeprefix("data: "))["choices"]:
            choice = choices.setdefault(chunk["index"], {"text": "", "lists": {}})
            choice["text"] += chunk["text"]
            for name, values in (chunk["logprobs"] or {}).items():
                choice["lists"].setdefault(name, []).extend(values)
            choice["finish_reason"] = chunk["finish_reason"]
    return [choices[index] for index in sorted(choices)]


def test_the_lists_begin_with_the_prompts_tokens(api):
    (choice,) = api.post(COMPLETE, json=SCORE | {"max_tokens": 2}).json()["choices"]
    assert choice["text"] == "abcHe"
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "c", "H", "e"],
        "token_logprobs": [None, -0.25, -0.5, -0.5, -0.5],
        "top_logprobs": [None, {"b": -0.25}, {"c": -0.5}, {"H": -0.5}, {"e": -0.5}],
        "text_offset": [0, 1, 2, 3, 4],
    }


def test_a_prompt_is_scored_without_generating_anything(api, server):
    answer = api.post(COMPLETE, json=SCORE | {"max_tokens": 0}).json()
    assert answer["choices"][0]["text"] == "abc"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["logprobs"]["tokens"] == ["a", "b", "c"]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 0,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert server.engine.submitted[0].max_tokens == 1


def test_a_prompt_that_fills_the_context_has_no_place_to_be_scored(api):
    body = SCORE | {"prompt": [1] * MAX_CONTEXT, "max_tokens": 0}
    error = api.post(COMPLETE, json=body).json()["error"]
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("change", [{}, {"max_tokens": 0}, {"n": 2}, {"prompt": ["abc", "de"], "n": 2}])
def test_a_stream_has_the_lists_of_a_complete_response(api, change):
    complete = api.post(COMPLETE, json=SCORE | change).json()["choices"]
    assert [(each["text"], each["logprobs"], each["finish_reason"]) for each in complete] == [
        (each["text"], each["lists"], each["finish_reason"]) for each in streamed(api, SCORE | change)
    ]


def test_several_choices_of_a_prompt_score_it_once(api, server):
    body = SCORE | {"n": 2, "best_of": 3, "prompt_logprobs": 0}
    choices = api.post(COMPLETE, json=body).json()["choices"]
    assert [submit.sampling.prompt_logprobs for submit in server.engine.submitted] == [1, None, None]
    for choice in choices:
        assert choice["logprobs"]["tokens"][:3] == ["a", "b", "c"]
        assert choice["prompt_logprobs"][1] == {"98": {"logprob": -0.25, "rank": 1, "decoded_token": "b"}}


def test_places_are_of_characters_however_tokens_divide_them(api, server):
    server.engine.script = lambda _: [END]
    (text,) = api.post(COMPLETE, json=SCORE | {"prompt": "é1"}).json()["choices"]
    assert text["logprobs"]["text_offset"] == [0, 0, 1]
    (tokens,) = api.post(COMPLETE, json=SCORE | {"prompt": [START, *tokens_of("é1")]}).json()["choices"]
    assert tokens["text"] == "<|start|>é1"
    assert tokens["logprobs"]["text_offset"] == [0, 9, 9, 10]


@pytest.mark.parametrize("echo", [True, False])
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ([], "aé llama🏔!é"),
        (["lmn", "amaz", "🏔?"], "aé llama🏔!é"),  # held back, and then none of them
        (["ma🏔!"], "aé lla"),
        (["llama🏔!éx"], "aé llama🏔!é"),  # held back up to the end
    ],
)
def test_places_are_the_same_while_text_is_held_back_streamed_or_not(api, server, stop, text, echo):
    data = "aé llama🏔!é".encode()
    server.engine.script = lambda _: [*data, END]
    body = SCORE | {"stop": stop, "max_tokens": 40, "echo": echo}
    (complete,) = api.post(COMPLETE, json=body).json()["choices"]
    (stream,) = streamed(api, body)
    before = "abc" if echo else ""
    assert complete["text"] == stream["text"] == before + text
    places = [len(data[:number].decode(errors="ignore")) for number in range(len(data))]
    expected = [*range(len(before)), *(len(before) + place for place in places)]
    count = len(complete["logprobs"]["tokens"])
    assert complete["logprobs"]["text_offset"] == stream["lists"]["text_offset"] == expected[:count]


def test_vllms_list_names_a_token_beyond_the_best_ones_without_a_rank(api):
    (choice,) = api.post(COMPLETE, json=SCORE | {"prompt_logprobs": 0, "logprobs": None}).json()["choices"]
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"] == [
        None,
        {"98": {"logprob": -0.25, "rank": None, "decoded_token": "b"}},
        {"99": {"logprob": -0.5, "rank": None, "decoded_token": "c"}},
    ]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"prompt": [65] * 500, "n": 128, "max_tokens": 1, "prompt_logprobs": 20}, "too_many_logprobs"),
        (
            {"prompt": [65] * 500, "n": 128, "max_tokens": 1, "echo": True, "logprobs": 20},
            "too_many_logprobs",
        ),
        ({"prompt": ["a" * 400] * 8, "n": 128, "max_tokens": 1, "echo": True}, "answer_too_long"),
    ],
)
def test_choices_that_repeat_too_much_of_their_prompts_are_refused(api, server, monkeypatch, change, code):
    monkeypatch.setattr(completions, "MAX_KEPT_CHARS", 300_000)
    answer = api.post(COMPLETE, json={"model": "tiny"} | change)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert server.engine.submitted == []
