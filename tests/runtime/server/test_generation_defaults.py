"""Defaults of a model's ``generation_config.json``: tokens that end an answer, and sampling parameters."""

import json

import httpx
import pytest
from fake_engine import END, START, live_server, tokens_of, write_model

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
GO_ON = {"model": "tiny", "prompt": "hi"}
TILDE = ord("~")  # a token that only generation_config.json names as an end
FILE = {
    "eos_token_id": [END, TILDE],
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.01,
    "repetition_penalty": 1.05,
    "transformers_version": "4.51.0",
}
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


def write_defaults(directory, content):
    write_model(directory)
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / "generation_config.json").write_text(text)
    return directory


@pytest.fixture(scope="module")
def defaulted(tmp_path_factory):
    """A server of a model whose file names defaults; its engine says "Hello~", then goes on."""
    model = write_defaults(tmp_path_factory.mktemp("models") / "tiny", FILE)
    with live_server(model) as server:
        server.engine.script = lambda _: tokens_of("Hello~ and much more that nobody asked for")
        yield server


@pytest.fixture
def client(defaulted):
    defaulted.engine.submitted.clear()
    with httpx.Client(base_url=defaulted.url, timeout=60) as client:
        yield client


def sampling_of(submit):
    return {name: getattr(submit.sampling, name) for name in SAMPLING}


@pytest.mark.parametrize(("path", "body"), [(CHAT, ASK), (COMPLETE, GO_ON)])
def test_an_end_token_of_generation_config_alone_ends_the_answer(client, path, body):
    answer = client.post(path, json=body | {"max_tokens": 40}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 6  # the end token is counted, and not shown
    choice = answer["choices"][0]
    assert choice.get("text", choice.get("message", {}).get("content")) == "Hello"


@pytest.mark.parametrize(("path", "body"), [(CHAT, ASK), (COMPLETE, GO_ON)])
def test_with_ignore_eos_no_default_end_ends_it_but_stops_of_the_request_do(client, defaulted, path, body):
    free = client.post(path, json=body | {"max_tokens": 12, "ignore_eos": True}).json()
    assert free["choices"][0]["finish_reason"] == "length"
    assert defaulted.engine.submitted[-1].stop_token_ids == ()
    named = body | {"max_tokens": 40, "ignore_eos": True, "stop_token_ids": [TILDE]}
    assert client.post(path, json=named).json()["choices"][0]["finish_reason"] == "stop"
    worded = client.post(path, json=body | {"max_tokens": 40, "ignore_eos": True, "stop": ["and"]}).json()
    assert worded["choices"][0]["finish_reason"] == "stop"


def test_a_request_that_names_nothing_is_sampled_as_the_file_says(client, defaulted):
    client.post(CHAT, json=ASK)
    assert sampling_of(defaulted.engine.submitted[-1]) == {name: FILE[name] for name in SAMPLING}


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": None, "top_p": 0.5}, {"top_p": 0.5}),
        ({"top_k": -1}, {"top_k": 0}),  # -1 and 0 keep all, whatever the file says
        ({"top_k": 0, "min_p": 0}, {"top_k": 0, "min_p": 0}),
        ({"repetition_penalty": 1}, {"repetition_penalty": 1.0}),
    ],
)
def test_a_field_of_the_request_outranks_the_file(client, defaulted, fields, changed):
    client.post(COMPLETE, json=GO_ON | fields)
    expected = {name: FILE[name] for name in SAMPLING} | changed
    assert sampling_of(defaulted.engine.submitted[-1]) == expected


def test_the_model_shows_its_defaults(client):
    for shown in (client.get("/v1/models/tiny").json(), client.get("/v1/models").json()["data"][0]):
        assert shown["eos_token_ids"] == sorted({END, TILDE})
        assert shown["sampling_defaults"] == {name: FILE[name] for name in SAMPLING}


def test_without_sampling_defaults_end_tokens_of_the_file_still_count(tmp_path):
    model = write_defaults(tmp_path / "tiny", FILE)
    with live_server(model, generation_config="none") as server, httpx.Client(base_url=server.url) as client:
        server.engine.script = lambda _: tokens_of("Hello~ and more")
        assert client.post(CHAT, json=ASK).json()["choices"][0]["finish_reason"] == "stop"
        assert sampling_of(server.engine.submitted[-1]) == NEUTRAL
        assert client.get("/v1/models/tiny").json()["sampling_defaults"] == NEUTRAL


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.3}, {"temperature": 0.3}),  # do_sample is often left out
        ({"temperature": None, "top_k": None}, {}),
        # transformers reads the first four only where it samples, the penalty always
        ({**FILE, "do_sample": False}, {"repetition_penalty": 1.05}),
        ({"temperature": 1, "top_k": -1, "top_p": 1}, {}),
    ],
)
def test_defaults_are_read_as_transformers_reads_them(tmp_path, file, expected):
    with live_server(write_defaults(tmp_path / "tiny", file)) as server:
        httpx.post(f"{server.url}{COMPLETE}", json=GO_ON)
        assert sampling_of(server.engine.submitted[-1]) == NEUTRAL | expected


def test_the_tokenizers_own_end_ends_the_answer_too(tmp_path):
    """A fine-tune's tokenizer may name an end of its own, which neither config does."""
    model = write_model(tmp_path / "tiny")
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|start|>"}))
    with live_server(model) as server:
        server.engine.script = lambda _: [*tokens_of("Hello"), START, *tokens_of(" and more")]
        answer = httpx.post(f"{server.url}{CHAT}", json=ASK).json()
        shown = httpx.get(f"{server.url}/v1/models/tiny").json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert shown["eos_token_ids"] == sorted({START, END})


def test_the_start_says_how_requests_are_sampled_and_which_tokens_are_renumbered(tmp_path, capfd):
    model = write_defaults(tmp_path / "tiny", FILE)
    content = json.loads((model / "tokenizer.json").read_text())
    content["added_tokens"].append(content["added_tokens"][0] | {"id": 300, "content": "<|far|>"})
    (model / "tokenizer.json").write_text(json.dumps(content))
    with live_server(model):
        pass
    said = capfd.readouterr().err
    assert (
        "are sampled with temperature 0.6, top_p 0.95, top_k 20, min_p 0.01, repetition_penalty 1.05" in said
    )
    assert "gives the added token '<|far|>' the id 300, which leaves a gap" in said
    assert "so it is read as 258; prompts that contain it mean another token" in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "generation_config.json is not JSON"),
        ("[]", "generation_config.json holds a list"),
        ({"temperature": "hot"}, "generation_config.json: temperature is 'hot'; expected a number"),
        ({"top_p": 1.5}, "top_p is 1.5; expected a number from 0 to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; expected a number from 0.01 to 100"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'; expected a token id"),
        (" " * ((1 << 20) + 1), "more than 1048576 bytes"),
    ],
)
def test_a_broken_file_ends_the_start_in_words(tmp_path, content, says):
    model = write_defaults(tmp_path / "tiny", content)
    with live_server(model, is_ready=False) as server:
        server.wait_until(lambda: not server._thread.is_alive())
        failure = server.join()
    is_damaged = "not JSON" in says or "bytes" in says  # as of config.json
    assert failure.reason == ("WeightsUnreadable" if is_damaged else "ModelUnsupported")
    assert says in failure.message
    assert str(model) in failure.message
