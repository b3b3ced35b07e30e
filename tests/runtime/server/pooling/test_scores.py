"""``/v1/score`` and ``/v1/rerank``: cosines of embeddings, or a reranker's "yes" and "no"."""

import math

import numpy as np
import pytest
from fake_engine import HIDDEN, tokens_of, vector_of

from wisp_runtime.engine.transport.messages import Pooling, Submit
from wisp_runtime.server.pooling import prompts
from wisp_runtime.server.pooling.settings import PoolingSettings

NO, YES = 110, 121
PREFIX, SUFFIX = tokens_of(prompts.PREFIX), tokens_of(prompts.SUFFIX)
TWO = {"text_1": "a", "text_2": "b"}
SCORE, RERANK = "/v1/score", "/v1/rerank"


@pytest.fixture
def reranker(api, server):
    """The model as a reranker: its logit of "yes" is the number of x in the document, that of "no" 1."""
    service, engine = server.server.service, server.engine
    usual, service.pooling = service.pooling, PoolingSettings(verdicts=(NO, YES))
    engine.vector = lambda request: [1.0, float(request.prompt.count(ord("x")))]
    yield api
    service.pooling, engine.vector = usual, vector_of


def vector(text):
    return np.array(vector_of(Submit("", tuple(tokens_of(text)), 1)))


def cosine(first, second):
    a, b = vector(first), vector(second)
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def post(api, path, **fields):
    answer = api.post(path, json={"model": "tiny"} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_score_of_equal_texts_is_1_at_most(api):
    texts = [f"text {number}" for number in range(100)]  # by rounding, a quarter of them were above 1
    scores = [entry["score"] for entry in post(api, SCORE, text_1=texts, text_2=texts)["data"]]
    assert all(1 - 1e-9 <= score <= 1 for score in scores)


@pytest.mark.parametrize("path", [SCORE, "/score"])
@pytest.mark.parametrize(
    ("fields", "pairs"),
    [
        ({"text_1": "a", "text_2": "b"}, [("a", "b")]),
        ({"text_1": "a", "text_2": ["b", "a"]}, [("a", "b"), ("a", "a")]),
        ({"text_1": ["a", "bc"], "text_2": ["b", "bc"]}, [("a", "b"), ("bc", "bc")]),
        ({"queries": "a", "documents": ["b"]}, [("a", "b")]),
        ({"queries": ["a"], "items": ["b", "c"]}, [("a", "b"), ("a", "c")]),
    ],
)
def test_a_score_is_the_cosine_of_both_embeddings(api, path, fields, pairs):
    answer = post(api, path, **fields)
    assert answer["object"] == "list"
    assert [entry["index"] for entry in answer["data"]] == list(range(len(pairs)))
    for entry, pair in zip(answer["data"], pairs, strict=True):
        assert entry["object"] == "score"
        assert math.isclose(entry["score"], cosine(*pair), abs_tol=1e-6)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0


def test_a_query_is_embedded_once_for_all_its_documents(api, server):
    post(api, RERANK, query="a", documents=["b", "c", "d"])
    assert [submit.pooling for submit in server.engine.submitted] == [Pooling("last")] * 4


@pytest.mark.parametrize("path", [RERANK, "/rerank", "/v2/rerank"])
def test_documents_come_in_the_order_of_their_scores(api, path):
    documents = ["zzz", {"text": "hello"}, "hellp", "hello"]
    answer = post(api, path, query="hello", documents=documents, return_documents=True)
    results = answer["results"]
    assert [result["index"] for result in results][:2] == [1, 3]  # of equals the earlier is first
    assert sorted(result["index"] for result in results) == [0, 1, 2, 3]
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert math.isclose(scores[0], 1.0, abs_tol=1e-6)
    assert results[0]["document"] == {"text": "hello"}


@pytest.mark.parametrize(
    ("path", "fields", "count", "shows"),
    [
        (RERANK, {}, 3, True),
        (RERANK, {"top_n": 2}, 2, True),
        (RERANK, {"top_n": 0}, 3, True),  # vLLM's default
        (RERANK, {"top_n": 9, "return_documents": False}, 3, False),
        ("/v2/rerank", {"top_n": 1}, 1, False),
        ("/v2/rerank", {"return_documents": True}, 3, True),
    ],
)
def test_as_many_are_returned_as_are_wanted_with_or_without_texts(api, path, fields, count, shows):
    results = post(api, path, query="a", documents=["a", "b", "c"], **fields)["results"]
    assert len(results) == count
    assert all(("document" in result) == shows for result in results)


def test_documents_can_be_shortened(api, server):
    post(api, RERANK, query="abcdef", documents=["abcdef", "ab"], max_tokens_per_doc=3)
    lengths = [len(submit.prompt) for submit in server.engine.submitted]
    assert sorted(lengths) == [2, 3, 6]
    server.engine.submitted.clear()
    post(api, SCORE, text_1="abcdef", text_2="ab", truncate_prompt_tokens=4)
    assert sorted(len(submit.prompt) for submit in server.engine.submitted) == [2, 4]


def test_a_reranker_judges_each_pair_in_the_prompt_that_it_was_trained_with(reranker, server):
    answer = post(reranker, RERANK, query="q", documents=["a", "xxx", "x"])
    assert [result["index"] for result in answer["results"]] == [1, 2, 0]
    scores = [result["relevance_score"] for result in answer["results"]]
    base = sum(text.count("x") for text in (prompts.PREFIX, prompts.SUFFIX, prompts.INSTRUCTION))
    logits = [base + count for count in (3, 1, 0)]
    np.testing.assert_allclose(scores, [math.exp(x) / (math.exp(x) + math.e) for x in logits], rtol=1e-6)
    body = f"<Instruct>: {prompts.INSTRUCTION}\n<Query>: q\n<Document>: "
    expected = [(*PREFIX, *tokens_of(body + text), *SUFFIX) for text in ("a", "xxx", "x")]
    assert sorted(submit.prompt for submit in server.engine.submitted) == sorted(expected)
    for submit in server.engine.submitted:
        assert submit.pooling == Pooling("logits", (NO, YES))
        assert submit.use_prefix_cache  # the prompts begin alike


def test_an_instruction_replaces_the_rerankers_own(reranker, server):
    post(reranker, SCORE, text_1="q", text_2="d", instruction="Find code")
    pair = tokens_of("<Instruct>: Find code\n<Query>: q\n<Document>: d")
    assert server.engine.submitted[-1].prompt == (*PREFIX, *pair, *SUFFIX)


def test_a_query_with_the_models_markup_is_taken_as_it_is(reranker, server):
    post(reranker, SCORE, text_1="<|im_start|>user\n", text_2="d<|im_end|>")
    assert server.engine.submitted[-1].prompt == tuple(tokens_of("<|im_start|>user\nd<|im_end|>"))


def test_a_rerankers_prompt_is_shortened_within_the_document_and_keeps_its_end(reranker, server):
    limit = len(PREFIX) + len(SUFFIX) + 20
    post(reranker, SCORE, text_1="q", text_2="d" * 400, truncate_prompt_tokens=limit)
    prompt = list(server.engine.submitted[-1].prompt)
    assert len(prompt) == limit
    assert prompt[-len(SUFFIX) :] == SUFFIX


@pytest.mark.parametrize(
    ("path", "fields", "param", "says"),
    [
        (SCORE, {}, None, "Send 'text_1'"),
        (SCORE, {"text_1": "a"}, None, "has 'text_1'"),
        (SCORE, {"text_1": "a", "documents": "b"}, None, "'text_1' and 'documents'"),
        (SCORE, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, None, "2 texts and 'text_2' 3"),
        (SCORE, {"text_1": "a", "text_2": "b", "instruction": "x"}, "instruction", "no reranker"),
        (
            SCORE,
            {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0},
            "truncate_prompt_tokens",
            "nothing",
        ),
        (RERANK, {"query": "a"}, "documents", "Missing"),
        (RERANK, {"query": "", "documents": ["a"]}, "query", "at least 1"),
        (RERANK, {"query": "a", "documents": []}, "documents", "at least 1"),
        (RERANK, {"query": "a", "documents": ["a"] * 2049}, "documents", "at most 2048"),
        (RERANK, {"query": "a", "documents": ["a"], "top_n": -1}, "top_n", "0"),
        (RERANK, {"query": "a", "documents": ["a"], "top_k": 1}, "top_k", "'top_n'"),
        (RERANK, {"query": "a", "documents": ["a" * 513]}, "documents", "513"),
        (RERANK, {"query": "a" * 513, "documents": ["a"]}, "query", "513"),
        (SCORE, {"text_1": "a" * 513, "text_2": "a"}, "text_1", "513"),
    ],
)
def test_a_refusal_names_the_field(api, path, fields, param, says):
    answer = api.post(path, json={"model": "tiny"} | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"] or None) == (400, param), error
    assert says in error["message"]


def test_documents_that_are_neither_texts_nor_objects_with_one_are_refused(api):
    for document in (1, {"text": ""}, {"title": "a"}, None, ["a"]):
        answer = api.post(RERANK, json={"model": "tiny", "query": "a", "documents": ["a", document]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("documents.1")


def test_pairs_of_too_many_tokens_are_refused_before_they_are_computed(reranker, server, monkeypatch):
    monkeypatch.setattr("wisp_runtime.server.api.scores.MAX_TOKENS", 1000)
    answer = reranker.post(RERANK, json={"model": "tiny", "query": "q", "documents": ["d"] * 9})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "documents")
    assert server.engine.submitted == []


def test_a_model_whose_embeddings_are_refused_gives_no_scores(api, server):
    service = server.server.service
    usual, service.pooling = service.pooling, PoolingSettings(refusal="modules.json lists 'Dense'")
    try:
        answer = api.post(SCORE, json={"model": "tiny", "text_1": "a", "text_2": "b"})
    finally:
        service.pooling = usual
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert len(vector("a")) == HIDDEN
