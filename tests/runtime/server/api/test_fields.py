"""Fields of requests that work: each has an effect, on what the engine is asked or on the response.

The table is the specification; with ``test_refused_fields.py`` it has every field of the servers named there.
"""

from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fake_engine import END, START, live_server, tokens_of, write_model
from tokenizers import Tokenizer, processors

from wisp_runtime.engine.transport.messages import TokenEvent, TokenLogprobs
from wisp_runtime.server.openapi.answers import ChatCompletion, Completion
from wisp_runtime.server.parsing.chat_request import ChatRequest
from wisp_runtime.server.parsing.completion_request import CompletionRequest
from wisp_runtime.server.structured.fields import StructuredFields

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
BODIES = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETE: {"model": "tiny", "prompt": "hi"},
}
BOTH = (CHAT, COMPLETE)
TOOLS = {"tools", "tool_choice", "parallel_tool_calls"}


@dataclass
class Outcome:
    """What the engine was asked first, and what the client got."""

    submits: list
    response: Any
    answer: dict

    @property
    def submit(self):
        return self.submits[0]

    @property
    def sampling(self):
        return self.submit.sampling

    @property
    def choice(self):
        return self.answer["choices"][0]

    @property
    def text(self):
        return self.choice["text"] if "text" in self.choice else self.choice["message"]["content"]


def _is_stream(outcome):
    return outcome.response.headers["content-type"].startswith("text/event-stream")


def _chunks_with_usage(outcome):
    return outcome.response.text.count('"usage":{"prompt_tokens"')


SECOND_TOKEN = {"105": {"logprob": -0.25, "rank": 1, "decoded_token": "i"}}
# Field, its value, the endpoints, fields beside it, and its effect: false without the field, true with it.
WORKS = [
    ("stream", True, BOTH, {}, _is_stream),
    ("stream_options", {"include_usage": True}, BOTH, {"stream": True}, lambda o: _chunks_with_usage(o) == 1),
    (
        "stream_options",
        {"continuous_usage_stats": True},
        BOTH,
        {"stream": True},
        lambda o: _chunks_with_usage(o) > 10,
    ),
    ("n", 2, BOTH, {}, lambda o: [c["index"] for c in o.answer["choices"]] == [0, 1]),
    ("best_of", 3, (COMPLETE,), {}, lambda o: len(o.submits) == 3),
    ("max_tokens", 3, BOTH, {}, lambda o: (o.text, o.choice["finish_reason"]) == ("Hel", "length")),
    ("max_completion_tokens", 3, (CHAT,), {}, lambda o: o.text == "Hel"),
    ("stop", "lo", BOTH, {}, lambda o: o.text == "Hel"),
    ("stop", ["w", "lo"], BOTH, {}, lambda o: o.text == "Hel"),
    ("stop_token_ids", [ord("o")], BOTH, {}, lambda o: o.text == "Hell"),
    ("include_stop_str_in_output", True, BOTH, {"stop": "lo"}, lambda o: o.text == "Hello"),
    ("include_stop_str_in_output", True, BOTH, {"stop_token_ids": [111]}, lambda o: o.text == "Hello"),
    ("skip_special_tokens", False, BOTH, {"stop": "w"}, lambda o: o.text == "Hello<|start|>, "),
    ("ignore_eos", True, BOTH, {"max_tokens": 20}, lambda o: o.answer["usage"]["completion_tokens"] == 20),
    ("temperature", 0.5, BOTH, {}, lambda o: o.sampling.temperature == 0.5),
    ("top_p", 0.5, BOTH, {}, lambda o: o.sampling.top_p == 0.5),
    ("top_k", 5, BOTH, {}, lambda o: o.sampling.top_k == 5),
    ("min_p", 0.1, BOTH, {}, lambda o: o.sampling.min_p == 0.1),
    ("seed", 7, BOTH, {}, lambda o: o.sampling.seed == 7),
    ("presence_penalty", 0.5, BOTH, {}, lambda o: o.sampling.presence_penalty == 0.5),
    ("frequency_penalty", 0.5, BOTH, {}, lambda o: o.sampling.frequency_penalty == 0.5),
    ("repetition_penalty", 1.5, BOTH, {}, lambda o: o.sampling.repetition_penalty == 1.5),
    ("logit_bias", {"5": 2}, BOTH, {}, lambda o: o.sampling.logit_bias == ((5, 2.0),)),
    ("min_tokens", 6, BOTH, {"stop": "o"}, lambda o: o.text == "Hello, w"),
    ("min_tokens", 6, BOTH, {}, lambda o: o.sampling.min_tokens == 6),
    (
        "allowed_token_ids",
        [5, 31],
        BOTH,
        {},
        lambda o: o.sampling.allowed_tokens == b"\x20\0\0\x80" + bytes(32),
    ),
    (
        "bad_words",
        ["ab"],
        BOTH,
        {},
        lambda o: o.sampling.bad_words == (tuple(b"ab"), tuple(b" ab")),
    ),
    (
        "prompt_logprobs",
        1,
        (COMPLETE,),
        {},
        lambda o: o.choice.get("prompt_logprobs") == [None, SECOND_TOKEN],
    ),
    (
        "prompt_logprobs",
        0,
        (CHAT,),
        {},
        lambda o: len(o.answer.get("prompt_logprobs", ())) == len(o.submit.prompt),
    ),
    ("max_tokens", 0, (COMPLETE,), {"echo": True}, lambda o: o.text == "hi"),
    ("cache_salt", "secret", BOTH, {}, lambda o: o.submit.cache_salt != 0),
    ("logprobs", True, (CHAT,), {}, lambda o: bool(o.choice["logprobs"])),
    ("logprobs", 2, (COMPLETE,), {}, lambda o: "top_logprobs" in (o.choice["logprobs"] or {})),
    (
        "top_logprobs",
        2,
        (CHAT,),
        {"logprobs": True},
        lambda o: len(o.choice["logprobs"]["content"][0]["top_logprobs"]) == 2,
    ),
    (
        "return_tokens_as_token_ids",
        True,
        (CHAT,),
        {"logprobs": True},
        lambda o: o.choice["logprobs"]["content"][0]["token"] == "token_id:72",
    ),
    (
        "return_tokens_as_token_ids",
        True,
        (COMPLETE,),
        {"logprobs": 1},
        lambda o: o.choice["logprobs"]["top_logprobs"][0] == {"token_id:72": -0.5},
    ),
    (
        "return_token_ids",
        True,
        BOTH,
        {},
        lambda o: o.choice.get("token_ids") == [*tokens_of("Hello"), START, *tokens_of(", world"), END],
    ),
    (
        "return_token_ids",
        True,
        BOTH,
        {},
        lambda o: (o.answer | o.choice).get("prompt_token_ids") == list(o.submit.prompt),
    ),
    ("request_id", "mine", BOTH, {}, lambda o: o.answer["id"].endswith("-mine")),
    ("truncate_prompt_tokens", 1, (COMPLETE,), {}, lambda o: o.submit.prompt == (ord("i"),)),
    ("truncate_prompt_tokens", 1, (CHAT,), {}, lambda o: o.submit.prompt == (ord("\n"),)),
    (
        "truncation_side",
        "right",
        (COMPLETE,),
        {"truncate_prompt_tokens": 1},
        lambda o: o.submit.prompt == (ord("h"),),
    ),
    (
        "truncation_side",
        "right",
        (CHAT,),
        {"truncate_prompt_tokens": 1},
        lambda o: o.submit.prompt == (START,),
    ),
    (
        "chat_template_kwargs",
        {"add_generation_prompt": False},
        (CHAT,),
        {},
        lambda o: END in o.submit.prompt[-2:],
    ),
    ("add_generation_prompt", False, (CHAT,), {}, lambda o: END in o.submit.prompt[-2:]),
    (
        "continue_final_message",
        True,
        (CHAT,),
        {"messages": [{"role": "assistant", "content": " So, "}]},
        lambda o: o.submit.prompt == (START, *tokens_of("assistant\n So, ")),
    ),
    ("echo", True, (COMPLETE,), {}, lambda o: o.text.startswith("hi")),
]
# What a client says for its own sake, or about what never changes a token.
ACCEPTED = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "flex",
    "safety_identifier": "me",
    "session_id": "mine",
    "prompt_cache_key": "mine",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"ttl": "30m"},
    "cache_prompt": False,
    "id_slot": 1,
    "spaces_between_special_tokens": False,
}
# Fields that other tests are about: prompts, tools, the name of the model.
THINKING = {"reasoning_effort", "thinking_token_budget", "include_reasoning", "repetition_detection"}
ELSEWHERE = {"model", "messages", "prompt", *TOOLS, *THINKING, "add_special_tokens", "documents"}
ELSEWHERE |= set(StructuredFields.model_fields)  # test_structured.py


def ask(api, server, path, fields):
    server.engine.submitted.clear()
    response = api.post(path, json=BODIES[path] | fields)
    assert response.status_code == 200, response.text
    is_json = response.headers["content-type"] == "application/json"
    if is_json:
        (Completion if path == COMPLETE else ChatCompletion).model_validate(response.json())
    return Outcome(list(server.engine.submitted), response, response.json() if is_json else {})


@pytest.fixture
def marked(api, server):
    """A model that writes a special token into its text."""
    server.engine.script = lambda _: [*tokens_of("Hello"), START, *tokens_of(", world"), END]
    return api


@pytest.mark.parametrize(
    ("name", "value", "path", "beside", "effect"),
    [
        pytest.param(name, value, path, beside, effect, id=f"{path.split('/')[2]}-{name}-{number}")
        for number, (name, value, paths, beside, effect) in enumerate(WORKS)
        for path in paths
    ],
)
def test_a_field_has_its_effect_and_only_with_it(marked, server, name, value, path, beside, effect):
    assert not effect(ask(marked, server, path, beside))
    assert effect(ask(marked, server, path, {**beside, name: value}))


@pytest.mark.parametrize("path", BOTH)
def test_fields_that_cannot_change_an_answer_do_not(marked, server, path):
    without, beside = (
        ask(marked, server, path, {"seed": 1}),
        ask(marked, server, path, {"seed": 1} | ACCEPTED),
    )
    assert beside.answer["choices"] == without.answer["choices"]
    first, second = without.submit, beside.submit
    assert (first.prompt, first.sampling) == (second.prompt, second.sampling)


def test_the_best_of_several_choices_are_the_likeliest_per_token(api, server, monkeypatch):
    texts = ["aab", "b", "ccd", "d"]
    likely = {ord("a"): -3.0, ord("b"): -2.0, ord("c"): -0.5, ord("d"): -1.0, END: -1.0}
    monkeypatch.setattr(
        server.engine,
        "_event",
        lambda request, token, finish: TokenEvent(
            request.request_id, token, finish, 0, TokenLogprobs(likely[token], ())
        ),
    )
    server.engine.script = lambda request: [*tokens_of(texts[request.choice % 4]), END]
    outcome = ask(api, server, COMPLETE, {"n": 2, "best_of": 4, "prompt": ["x", "y"]})
    choices = outcome.answer["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [
        (0, "ccd"),
        (1, "d"),
        (2, "ccd"),
        (3, "d"),
    ]
    assert choices[0]["logprobs"] is None
    assert outcome.answer["usage"]["prompt_tokens"] == 2
    assert outcome.answer["usage"]["completion_tokens"] == 2 * (4 + 2 + 4 + 2)  # of all that was generated


def test_add_special_tokens_puts_the_tokenizers_own_around_a_prompt(tiny_model, tmp_path):
    directory = write_model(tmp_path / "with-bos")
    file = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", START)]
    )
    tokenizer.save(str(file))
    begun = []
    with live_server(directory) as server, httpx.Client(base_url=server.url, timeout=60) as api:
        for path in BOTH:
            for fields in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
                prompt = ask(api, server, path, fields).submit.prompt
                begun.append(prompt[: 1 + (path == CHAT)].count(START))
    assert begun == [1, 2, 1, 1, 1, 0]  # a template writes its own


def test_documents_are_given_to_a_template_that_reads_them(tmp_path):
    template = "{% for text in documents or [] %}{{ text.text }}{% endfor %}{{ messages[0].content }}"
    directory = write_model(tmp_path / "with-documents", template)
    with live_server(directory) as server, httpx.Client(base_url=server.url, timeout=60) as api:
        assert ask(api, server, CHAT, {}).submit.prompt == tuple(b"hi")
        assert ask(api, server, CHAT, {"documents": [{"text": "ab"}]}).submit.prompt == tuple(b"abhi")


@pytest.mark.parametrize(("path", "model"), [(CHAT, ChatRequest), (COMPLETE, CompletionRequest)])
def test_every_field_that_is_read_is_in_a_table(path, model):
    works = {name for name, _, paths, _, _ in WORKS if path in paths}
    assert set(model.model_fields) <= works | set(ACCEPTED) | ELSEWHERE


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETE, {"best_of": 2, "n": 3}, "best_of"),
        (COMPLETE, {"best_of": 2, "stream": True}, "best_of"),
        (COMPLETE, {"best_of": 20, "prompt": ["a"] * 100}, "best_of"),
        (CHAT, {"best_of": 2}, "best_of"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (COMPLETE, {"stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        (COMPLETE, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        (COMPLETE, {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        (COMPLETE, {"truncation_side": "left"}, "truncation_side"),
        (COMPLETE, {"truncate_prompt_tokens": 1, "truncation_side": "middle"}, "truncation_side"),
        (COMPLETE, {"min_tokens": 17}, "min_tokens"),  # 16 are generated
        (CHAT, {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        (COMPLETE, {"allowed_token_ids": []}, "allowed_token_ids"),
        (COMPLETE, {"allowed_token_ids": [264]}, "allowed_token_ids"),
        (COMPLETE, {"bad_words": [""]}, "bad_words"),
        (COMPLETE, {"bad_words": ["x"] * 65}, "bad_words"),
        (COMPLETE, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (COMPLETE, {"prompt_logprobs": -1}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (COMPLETE, {"prompt_logprobs": 20, "prompt": [[1] * 490] * 60}, "prompt_logprobs"),
        (COMPLETE, {"echo": True, "logprobs": 20, "prompt": [[1] * 490] * 60}, "logprobs"),
        (COMPLETE, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (COMPLETE, {"request_id": "a b"}, "request_id"),
        (COMPLETE, {"request_id": "a" * 97}, "request_id"),
        (COMPLETE, {"prompt": "x" * 9000, "truncate_prompt_tokens": 1}, "prompt"),
        (CHAT, {"documents": [{"text": "x"}]}, "documents"),  # the template reads none
        (CHAT, {"continue_final_message": True}, "continue_final_message"),  # the last message is a user's
        (CHAT, {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        (COMPLETE, {"logprobs": 21}, "logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_a_value_or_a_pair_of_fields_that_means_nothing_is_a_400_that_names_it(api, path, fields, param):
    response = api.post(path, json=BODIES[path] | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].split(".")[0] == param
    assert param in response.json()["error"]["message"]
