"""The CPU engine's model beside Hugging Face transformers, on the same converted weights.

``golden/smollm2.json`` holds what transformers did (``golden/make_golden.py`` made it).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from spec_changes import attention_of
from tokenizers import Tokenizer

from wisp_runtime.batch import Batch
from wisp_runtime.layers.cache import kv_cache
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.ops.registry import open_device
from wisp_runtime.server.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.model

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/smollm2.json").read_text(encoding="utf-8"))
PROMPTS = {prompt["name"]: prompt for prompt in GOLDEN["prompts"]}
BLOCK_TOKENS = 16
BLOCKS_EACH = 48


@pytest.fixture(scope="module")
def model(smollm2_dir):
    return load_model(smollm2_dir, read_spec(smollm2_dir), open_device("cpu").ops)


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir):
    return Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))


@pytest.fixture
def cache(model):
    spec = model.spec
    blocks = BLOCKS_EACH * len(PROMPTS)
    shape = (
        len(spec.layers),
        blocks,
        attention_of(spec).kv_heads,
        BLOCK_TOKENS,
        attention_of(spec).head_size,
    )
    return kv_cache(np.zeros(shape, np.float32), np.zeros(shape, np.float32), BLOCK_TOKENS)


def batch_of(chunks: list[tuple[int, int, list[int]]]) -> Batch:
    """Make a batch of (row of the block table, first position, tokens); each row owns every eighth block."""
    tables = np.arange(BLOCKS_EACH * len(PROMPTS), dtype=np.int32).reshape(BLOCKS_EACH, -1).T
    counts = [len(tokens) for _, _, tokens in chunks]
    starts = (0, *np.cumsum(counts).tolist())
    positions = np.concatenate([np.arange(first, first + len(tokens)) for _, first, tokens in chunks])
    rows = np.repeat([row for row, _, _ in chunks], counts)
    contexts = tuple(first + len(tokens) for _, first, tokens in chunks)
    slots = tables[rows, positions // BLOCK_TOKENS].astype(np.int64) * BLOCK_TOKENS + positions % BLOCK_TOKENS
    return Batch(
        tokens=np.concatenate([np.array(tokens, np.int32) for _, _, tokens in chunks]),
        positions=positions.astype(np.int32),
        slots=slots,
        query_starts=np.array(starts, np.int32),
        context_lengths=np.array(contexts, np.int32),
        block_tables=tables[[row for row, _, _ in chunks]],
        logit_rows=np.array(starts[1:], np.int64) - 1,
        query_starts_host=starts,
        context_lengths_host=contexts,
    )


def generate(model, cache, prompts: list[list[int]], count: int, chunk: int) -> list[list[int]]:
    """Continue ``prompts`` greedily, all in one batch, prompts in chunks: prefill and decode mix."""
    sequences = [list(prompt) for prompt in prompts]
    done = [0] * len(prompts)
    while True:
        chunks = []
        for row, sequence in enumerate(sequences):
            if len(sequence) < len(prompts[row]) + count:
                chunks.append((row, done[row], sequence[done[row] : done[row] + chunk]))
        if not chunks:
            return [sequence[len(prompt) :] for sequence, prompt in zip(sequences, prompts, strict=True)]
        best = model.forward(batch_of(chunks), cache).logits.argmax(axis=1)
        for (row, first, tokens), token in zip(chunks, best.tolist(), strict=True):
            done[row] = first + len(tokens)
            if done[row] == len(sequences[row]):
                sequences[row].append(token)


def test_the_weights_are_those_that_transformers_read(smollm2_dir):
    with (smollm2_dir / "model.safetensors").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == GOLDEN["weights_sha256"]


@pytest.mark.parametrize("name", PROMPTS)
def test_text_becomes_the_same_tokens_as_in_transformers_and_back(tokenizer, name):
    prompt = PROMPTS[name]
    assert tokenizer.encode(prompt["text"]).ids == prompt["ids"]
    assert tokenizer.decode(prompt["ids"], skip_special_tokens=False) == prompt["text"]
    assert tokenizer.decode(prompt["tokens"], skip_special_tokens=False) == prompt["decoded"]


@pytest.mark.parametrize("name", PROMPTS)
def test_the_stream_after_each_layer_is_that_of_transformers(model, cache, name):
    prompt, seen = PROMPTS[name], {}
    logits = model.forward(
        batch_of([(0, 0, prompt["ids"])]), cache, lambda layer, stream: seen.update({layer: stream[-1]})
    ).logits
    for layer, expected in prompt["probes"].items():
        row = seen[int(layer)]
        # float32 on both sides, sums in another order: the stream agrees to about 1e-6 of its size.
        scale = max(1.0, expected["deviation"])
        np.testing.assert_allclose(
            row[:8], expected["first"], atol=2e-4 * scale, err_msg=f"after layer {layer}"
        )
        assert row.mean() == pytest.approx(expected["mean"], abs=2e-4 * scale)
        assert row.std() == pytest.approx(expected["deviation"], rel=2e-4)
    ids, values = zip(*prompt["top_logits"], strict=True)
    np.testing.assert_allclose(logits[0, list(ids)], values, atol=2e-3)


@pytest.mark.parametrize("name", PROMPTS)
def test_alone_a_prompt_continues_as_in_transformers_for_64_tokens(model, cache, name):
    prompt = PROMPTS[name]
    assert len(prompt["tokens"]) == 64
    assert generate(model, cache, [prompt["ids"]], 64, chunk=512) == [prompt["tokens"]]


@pytest.mark.parametrize("chunk", [512, 48, 7])
def test_in_one_batch_all_prompts_continue_as_in_transformers(model, cache, chunk):
    """With small chunks the long prompt is still prefilled while the short ones decode."""
    count = 64 if chunk > 7 else 16
    found = generate(model, cache, [prompt["ids"] for prompt in PROMPTS.values()], count, chunk)
    assert found == [prompt["tokens"][:count] for prompt in PROMPTS.values()]


def test_a_cached_prefix_gives_the_same_tokens_as_computing_it(model, cache):
    """The last tokens of a prompt are computed against what an earlier sequence left in the blocks."""
    prompt = PROMPTS["text-long"]
    cut = len(prompt["ids"]) // BLOCK_TOKENS * BLOCK_TOKENS - BLOCK_TOKENS
    model.forward(batch_of([(0, 0, prompt["ids"][:cut])]), cache)
    logits = model.forward(batch_of([(0, cut, prompt["ids"][cut:])]), cache).logits
    assert int(logits[0].argmax()) == prompt["tokens"][0]


def test_the_gguf_file_itself_holds_the_same_model_before_its_weights_were_rounded(
    model, smollm2_gguf, tokenizer
):
    direct = load_model(smollm2_gguf, read_spec(smollm2_gguf), open_device("cpu").ops)
    stored = model.weights.arena.view(np.float32)
    rounded = direct.weights.arena.view(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(rounded, stored)
    assert load_tokenizer(smollm2_gguf).tokenizer.to_str() == tokenizer.to_str()
