"""``/v1/embeddings`` on a scripted engine: fields, limits, order, errors, the official client."""

import base64
import math
import threading

import httpx
import numpy as np
import openai
import pytest
from fake_engine import END, HIDDEN, MAX_CONTEXT, live_server, tokens_of, vector_of, write_model

from wisp_runtime.engine.transport.messages import Pooling, Submit
from wisp_runtime.server.pooling.settings import PoolingSettings

PATH = "/v1/embeddings"


def expected(tokens, dimensions=None):
    """The fake engine's vector of a prompt, of length 1."""
    vector = np.array(vector_of(Submit("", tuple(tokens), 1)), np.float32)[:dimensions]
    return vector / np.linalg.norm(vector)


def embed(api, **fields):
    answer = api.post(PATH, json={"model": "tiny"} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors(answer):
    assert [entry["index"] for entry in answer["data"]] == list(range(len(answer["data"])))
    return [np.array(entry["embedding"], np.float32) for entry in answer["data"]]


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hé", [tokens_of("hé")]),
        (["a", "bc"], [tokens_of("a"), tokens_of("bc")]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1], [2, 3], "a"], [[1], [2, 3], tokens_of("a")]),
    ],
)
def test_texts_and_token_ids_become_vectors_of_length_1_in_their_order(api, server, given, prompts):
    answer = embed(api, input=given)
    assert set(answer) == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    count = sum(map(len, prompts))
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    for vector, prompt in zip(vectors(answer), prompts, strict=True):
        np.testing.assert_allclose(vector, expected(prompt), rtol=1e-6)
    for submit in server.engine.submitted:
        assert submit.pooling == Pooling("last")
        assert not submit.use_prefix_cache
    choices = [submit.choice for submit in server.engine.submitted]
    assert choices == [0, 1, 1][: len(prompts)]  # further ones rank behind other requests


def test_base64_holds_the_same_float32_numbers(api):
    texts = ["a", "hello", "x" * 99]
    plain = vectors(embed(api, input=texts))
    packed = embed(api, input=texts, encoding_format="base64")
    for vector, entry in zip(plain, packed["data"], strict=True):
        assert np.frombuffer(base64.b64decode(entry["embedding"]), "<f4").tolist() == vector.tolist()


def test_dimensions_keep_the_first_numbers_and_the_length_of_1(api):
    (vector,) = vectors(embed(api, input="hello", dimensions=3))
    np.testing.assert_allclose(vector, expected(tokens_of("hello"), 3), rtol=1e-6)
    (plain,) = vectors(embed(api, input="hello", dimensions=3, normalize=False))
    assert plain.tolist() == vector_of(Submit("", tuple(tokens_of("hello")), 1))[:3]


def test_a_long_text_is_refused_or_shortened_to_its_last_tokens(api):
    full = [1] * MAX_CONTEXT
    assert embed(api, input=full)["usage"]["prompt_tokens"] == MAX_CONTEXT
    answer = api.post(PATH, json={"model": "tiny", "input": ["a", [*full, 1]]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "input", "context_length_exceeded")
    assert f"{MAX_CONTEXT + 1}" in error["message"]
    assert "truncate_prompt_tokens" in error["message"]
    for truncation, kept in ((-1, MAX_CONTEXT), (4, 4)):
        long = "abcdefgh" * MAX_CONTEXT
        answer = embed(api, input=long, truncate_prompt_tokens=truncation)
        assert answer["usage"]["prompt_tokens"] == kept
        np.testing.assert_allclose(vectors(answer)[0], expected(tokens_of(long)[-kept:]), rtol=1e-6)


def test_a_list_of_2048_inputs_is_answered_in_order(api, server):
    given = [[1 + n % 200, 7] for n in range(2048)]
    answer = embed(api, input=given)
    for vector, prompt in zip(vectors(answer), given, strict=True):
        np.testing.assert_allclose(vector, expected(prompt), rtol=1e-6)


def test_no_more_prompts_are_in_flight_than_two_steps_take(api, server):
    engine, most = server.engine, 0

    def vector(request):
        nonlocal most
        most = max(most, len(engine._queues))
        return vector_of(request)

    engine.vector, engine.delay_s = vector, 0.001
    try:
        embed(api, input=[[1]] * 64)
    finally:
        engine.vector = vector_of
    assert 8 <= most <= 16


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"input": None}, "input", "must be a string"),
        ({"input": ""}, "input", "not empty"),
        ({"input": []}, "input", "list of strings"),
        ({"input": ["a", ""]}, "input", "Input 1"),
        ({"input": [1, "a"]}, "input", "Input 0"),
        ({"input": [[]]}, "input", "Input 0"),
        ({"input": [1.5]}, "input", "Input 0"),
        ({"input": [True]}, "input", "Input 0"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": [[264]]}, "input", "264 at position 0"),
        ({"input": [[-1]]}, "input", "-1 at position 0"),
        ({"encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"dimensions": HIDDEN + 1}, "dimensions", f"{HIDDEN} numbers"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "leaves nothing"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-1"),
        ({"inputs": "a"}, "inputs", "'input'"),
        ({"stream": True}, "stream", "Unknown"),
    ],
)
def test_a_refusal_names_the_field(api, change, param, says):
    answer = api.post(PATH, json={"model": "tiny", "input": "a"} | change)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert says in error["message"]


def test_an_answer_of_too_many_numbers_is_refused_before_it_is_computed(api, server, monkeypatch):
    monkeypatch.setattr("wisp_runtime.server.api.embeddings.MAX_NUMBERS", 4 * HIDDEN)
    assert api.post(PATH, json={"model": "tiny", "input": ["a"] * 4}).status_code == 200
    server.engine.submitted.clear()
    answer = api.post(PATH, json={"model": "tiny", "input": ["a"] * 5})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
    assert server.engine.submitted == []
    assert api.post(PATH, json={"model": "tiny", "input": ["a"] * 5, "dimensions": 2}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "status", "param", "says"),
    [
        (PoolingSettings(refusal="modules.json lists 'Dense'"), 400, "model", "'Dense'"),
        (PoolingSettings(kind="mean"), 200, None, ""),
    ],
)
def test_the_models_own_way_of_pooling_is_used(api, server, settings, status, param, says):
    service = server.server.service
    usual, service.pooling = service.pooling, settings
    try:
        answer = api.post(PATH, json={"model": "tiny", "input": "a"})
    finally:
        service.pooling = usual
    assert answer.status_code == status
    if status == 200:
        assert server.engine.submitted[-1].pooling == Pooling("mean")
    else:
        assert answer.json()["error"]["param"] == param
        assert says in answer.json()["error"]["message"]


def test_a_device_without_the_pooling_refuses_by_name(tiny_model):
    with live_server(tiny_model) as server, httpx.Client(base_url=server.url, timeout=60) as api:
        server.engine.info = server.engine.info.__class__(
            *(MAX_CONTEXT, 8, 264, (END,), {}, {}, "cuda", server.engine.load), HIDDEN, frozenset({"last"})
        )
        assert api.post(PATH, json={"model": "tiny", "input": "a"}).status_code == 200
        server.server.service.pooling = PoolingSettings(kind="mean")
        answer = api.post(PATH, json={"model": "tiny", "input": "a"})
    assert answer.status_code == 400
    assert "'mean'" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("finish", "status"), [("overloaded", 429), ("expired", 503), ("error", 500)])
def test_failures_of_the_engine_are_the_apis_errors_and_abort_the_others(api, server, finish, status):
    server.engine.refuses_with, server.engine.fails_with = finish, "no"
    answer = api.post(PATH, json={"model": "tiny", "input": ["a"] * 40})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert len(server.engine.submitted) <= 16


def test_a_client_that_leaves_aborts_its_prompts(api, server):
    server.engine.delay_s = 30.0
    with pytest.raises(httpx.ReadTimeout):
        api.post(PATH, json={"model": "tiny", "input": ["a", "b"]}, timeout=2)
    server.wait_until(lambda: len(server.engine.aborted) == 2)
    server.wait_until(lambda: server.server.service.active == 0)


def test_a_server_that_stops_ends_them_with_its_reason(tmp_path):
    with live_server(write_model(tmp_path / "m")) as server:
        server.engine.delay_s, answers = 30.0, []

        def ask():
            answers.append(httpx.post(server.url + PATH, json={"model": "tiny", "input": "a"}, timeout=60))

        asking = threading.Thread(target=ask)
        asking.start()
        server.wait_until(lambda: bool(server.engine.submitted))
        server.stop()
        asking.join(60)
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["code"] == "server_stopping"


def test_responses_and_prompts_are_counted(api):
    embed(api, input=["a", "b"])
    text = api.get("/metrics").text
    assert 'wisp_http_responses_total{model_name="tiny",path="/v1/embeddings",status="200"}' in text


@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_the_official_client_reads_both_encodings(server, api, form):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        answer = client.embeddings.create(model="tiny", input=["hello", "b"], **form)
    assert answer.usage.total_tokens == 6
    for entry, text in zip(answer.data, ("hello", "b"), strict=True):
        numbers = entry.embedding
        if isinstance(numbers, str):
            numbers = np.frombuffer(base64.b64decode(numbers), "<f4").tolist()
        np.testing.assert_allclose(numbers, expected(tokens_of(text)), rtol=1e-6)
        assert math.isclose(math.hypot(*numbers), 1.0, rel_tol=1e-6)
