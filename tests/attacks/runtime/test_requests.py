"""Requests of a few bytes that ask for much, or for what the model does not have (A6, B2, C)."""

import time

import pytest
from attack import attack
from attacked_model import CONTEXT, OUTSIDE, VOCAB
from runtime_target import COMPLETIONS_PATH

HUGE = 10**400
BIASES = {str(token): 1.0 for token in range(VOCAB)}
REFUSED = {
    "token ids above the vocabulary": {"prompt": [VOCAB]},
    "token ids below zero": {"prompt": [-1]},
    "token ids of 400 digits": {"prompt": [HUGE]},
    "more prompts than there may be": {"prompt": ["a"] * 2000},
    "a prompt of a megabyte": {"prompt": "x" * (1 << 20)},
    "a prompt of 200,000 token ids": {"prompt": [1] * 200_000},
    "more biases than there may be": {"prompt": "a", "logit_bias": BIASES},
    "a bias for a token that is none": {"prompt": "a", "logit_bias": {"9" * 400: 1}},
    "a bias without an end": {"prompt": "a", "logit_bias": {"1": 1e300}},
    "200,000 stop tokens": {"prompt": "a", "stop_token_ids": list(range(200_000)), "n": 128},
    "one stop token of 400 digits": {"prompt": "a", "stop_token_ids": [HUGE]},
    "17 stop strings": {"prompt": "a", "stop": ["x"] * 17},
    "a stop string of a megabyte": {"prompt": "a", "stop": ["x" * (1 << 20)], "n": 128},
    "a seed of 65 bits": {"prompt": "a", "seed": 1 << 64},
    "a seed of 400 digits": {"prompt": "a", "seed": HUGE},
    "10,000 choices": {"prompt": "a", "n": 10_000},
    "131,072 choices of 1,024 prompts": {"prompt": ["a"] * 1024, "n": 128, "max_tokens": 1},
    "tokens without an end": {"prompt": "a", "max_tokens": HUGE},
    "a temperature without an end": {"prompt": "a", "temperature": 1e308},
    "10,000 alternatives": {"prompt": "a", "logprobs": 10_000},
    "a field that nobody knows": {"prompt": "a", "x" * 100_000: 1},
    "a model's name of a megabyte": {"prompt": "a", "model": "x" * (1 << 20)},
}
ANSWERED = {
    "seeds at the edge": {"prompt": "a", "seed": (1 << 63) - 1, "max_tokens": 2},
    "a temperature of almost zero": {"prompt": "a", "temperature": 1e-45, "max_tokens": 2},
    "a share of almost zero": {"prompt": "a", "top_p": 1e-45, "max_tokens": 2},
    "the best of 2^62": {"prompt": "a", "top_k": 1 << 62, "max_tokens": 2},
    "metadata of a hundred kilobytes": {"prompt": "a", "metadata": {"k": "x" * 100_000}, "max_tokens": 2},
    "a prompt of control characters": {"prompt": "\0\x01\x7f\r\n", "max_tokens": 2},
    "text of right-to-left marks": {"prompt": "\u202e" * 100, "max_tokens": 2},
}


@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED)
@attack("B2")
def test_a_request_that_asks_for_too_much(runtime, fields):
    answer = runtime.ask(COMPLETIONS_PATH, **fields)
    assert answer.status in (400, 404, 413)
    assert len(answer.json["error"]["message"]) < 1000


@pytest.mark.parametrize("fields", ANSWERED.values(), ids=ANSWERED)
@attack("E")
def test_a_request_at_an_edge(runtime, fields):
    assert runtime.ask(COMPLETIONS_PATH, **fields).status in (200, 400)


@attack("A6")
def test_eight_chats_with_a_token_beyond_the_vocabulary(runtime):
    """More than the error budget, and further apart than one burst."""
    for _ in range(8):
        message = {"role": "user", "content": f"hi {OUTSIDE}"}
        assert runtime.ask(messages=[message], max_tokens=1).status == 400
        time.sleep(1.1)


@attack("A6")
def test_a_hundred_refused_requests(runtime):
    for number in range(100):
        assert runtime.ask(messages=[{"role": "user"}], n=number - 100).status == 400


@attack("B3")
def test_thirty_thousand_messages(runtime):
    messages = [{"role": "user", "content": "x"}] * 30_000
    assert runtime.ask(messages=messages, max_tokens=1).status in (400, 413)


@attack("B3")
def test_a_message_of_thirty_thousand_parts(runtime):
    message = {"role": "user", "content": [{"type": "text", "text": "x"}] * 30_000}
    assert runtime.ask(messages=[message], max_tokens=1).status in (200, 400, 413)


@attack("new")
def test_names_for_the_template_that_hide_its_own(runtime):
    hidden = dict.fromkeys(("messages", "range", "namespace", "raise_exception", "self", "loop"), "x")
    assert runtime.ask(chat_template_kwargs=hidden, max_tokens=1).status in (200, 400)


@attack("new")
def test_names_for_the_template_of_nine_hundred_levels(runtime):
    nested: object = 0
    for _ in range(900):
        nested = {"k": nested}
    assert runtime.ask(chat_template_kwargs={"deep": nested}, max_tokens=1).status in (200, 400)


@attack("E")
def test_a_prompt_as_long_as_the_context(runtime):
    answer = runtime.ask(COMPLETIONS_PATH, prompt=[1] * CONTEXT, max_tokens=1)
    assert answer.status == 400
    assert answer.code == "context_length_exceeded"


@attack("C seeds")
def test_seeds_of_neighbours_share_no_choices(runtime):
    """Choice k of seed s was choice 0 of seed s + k."""

    def texts(seed, n):
        fields = {"prompt": "a", "seed": seed, "n": n, "max_tokens": 8, "temperature": 1, "ignore_eos": True}
        choices = runtime.ask(COMPLETIONS_PATH, **fields).json["choices"]
        return [choice["text"] for choice in sorted(choices, key=lambda choice: choice["index"])]

    first = texts(1, 3)
    assert first[0] == texts(1, 1)[0]
    assert not set(first) & {texts(2, 1)[0], texts(3, 1)[0]}


@attack("new")
def test_every_field_of_every_wrong_type(runtime):
    for field in (
        "n",
        "stream",
        "stop",
        "seed",
        "logit_bias",
        "metadata",
        "temperature",
        "messages",
        "model",
    ):
        for wrong in ({"a": []}, [[]], True, "", 1.5, -(1 << 70)):
            answer = runtime.ask(**{"max_tokens": 1, field: wrong})
            assert answer.status in (200, 400, 404), (field, wrong, answer)
