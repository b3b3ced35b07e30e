"""Embeddings and scores of a random Qwen3, from the official client's call to float64 and back."""

import dataclasses
import json

import httpx
import numpy as np
import openai
import pytest
from fake_engine import live_server, write_model
from float64_llama import Float64Llama
from test_engine_model import TINY, write_tiny
from tokenizers import Tokenizer

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine import startup
from wisp_runtime.engine.loop import step
from wisp_runtime.server.pooling import prompts
from wisp_runtime.server.text.tokenizer import load_tokenizer

WORDS = ("no", "yes", "<|im_start|>", "<|im_end|>")
CONFIG = TINY | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 16,
    "vocab_size": 264,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
TEXTS = ["hello", "héllo wörld", "x" * 150]
FLOAT32 = 2e-5


class Served:
    """A server whose engine's vectors are those of a real model, step by step on the CPU."""

    def __init__(self, folder, engine, server):
        self.reference, self.tokenizer = Float64Llama(folder), load_tokenizer(folder)
        self.engine, self.server = engine, server
        server.engine.vector = self.vector
        server.engine.info = dataclasses.replace(
            server.engine.info, hidden_size=engine.ready.hidden_size, poolings=engine.ready.poolings
        )

    def vector(self, request):
        scheduler = self.engine.scheduler
        assert scheduler.submit(request) is None
        events = []
        while not scheduler.is_idle:
            events += step(scheduler, self.engine.runner)
        return np.frombuffer(events[-1].pooled, np.float32).tolist()

    def states(self, text):
        return self.reference.states(self.tokenizer.encode(text, adds_special=True))

    def client(self):
        return openai.OpenAI(base_url=f"{self.server.url}/v1", api_key="unused", max_retries=0)

    def post(self, path, **fields):
        return httpx.post(self.server.url + path, json={"model": "tiny"} | fields, timeout=60).json()


@pytest.fixture(scope="module", params=["last", "mean"])
def served(request, tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("vectors") / "qwen3", config=CONFIG)
    write_model(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(list(WORDS[2:]))
    tokenizer.add_tokens(list(WORDS[:2]))
    tokenizer.save(str(folder / "tokenizer.json"))
    if request.param == "mean":
        modules = [{"type": "sentence_transformers.models.Pooling"}]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    config = ServeConfig(model=str(folder), threads=1, block_tokens=4, max_step_tokens=48, max_concurrent=4)
    with live_server(folder, alias="small-reranker") as server:
        yield request.param, Served(folder, startup.start(config, lambda _: None), server)


@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}])
def test_embeddings_are_those_of_the_formula(served, form):
    kind, model = served
    with model.client() as client:
        answer = client.embeddings.create(model="tiny", input=TEXTS, **form)
    for entry, text in zip(answer.data, TEXTS, strict=True):
        states = model.states(text)
        expected = states.mean(axis=0) if kind == "mean" else states[-1] / np.linalg.norm(states[-1])
        np.testing.assert_allclose(entry.embedding, expected, atol=FLOAT32, rtol=FLOAT32)


def test_a_reranker_gives_the_softmax_of_its_logits_of_yes(served):
    _, model = served
    no, yes = (model.tokenizer.tokenizer.token_to_id(word) for word in WORDS[:2])
    scores = model.post("/v1/score", text_1="q", text_2=TEXTS)["data"]
    for entry, text in zip(scores, TEXTS, strict=True):
        pair = f"<Instruct>: {prompts.INSTRUCTION}\n<Query>: q\n<Document>: {text}"
        prompt = model.tokenizer.encode(prompts.PREFIX + pair + prompts.SUFFIX, adds_special=False)
        logits = model.reference.logits(prompt)
        expected = 1 / (1 + np.exp(logits[no] - logits[yes]))
        np.testing.assert_allclose(entry["score"], expected, atol=FLOAT32)
    ranked = model.post("/v1/rerank", query="q", documents=TEXTS)["results"]
    order = sorted(range(3), key=lambda index: -scores[index]["score"])
    assert [result["index"] for result in ranked] == order
