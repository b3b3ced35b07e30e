"""The engine over quantized keys and values: batch, chunks, reuse and preemption change no token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_engine_model import TINY, answers, answers_alone, mixed_requests, require_tokens, write_tiny

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine import startup
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.errors import ConfigError

HEADS_OF_16 = TINY | {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 3}
FORMATS = {"fp8": 16, "turbo8": 16, "nvfp4": 9, "turbo4": 9, "turbo3": 7}  # bytes of a row of 16 channels
SETTINGS = [*((name, 0) for name in FORMATS), ("turbo4", 1)]


def started(folder, **settings):
    fixed = {"threads": 1, "block_tokens": 4, "max_step_tokens": 48, "max_concurrent": 8}
    return startup.start(ServeConfig(model=str(folder), **(fixed | settings)), lambda _: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("engine") / "tiny", config=HEADS_OF_16)


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda setting: "-".join(map(str, setting)))
def engine(request, folder):
    name, bf16_layers = request.param
    return started(folder, kv_cache_dtype=name, kv_cache_bf16_layers=bf16_layers)


def greedy(requests):
    return [replace(request, sampling=SamplingParams(temperature=0.0)) for request in requests[:6]]


def few_blocks(cache):
    """Blocks for the longest sequence and little more."""
    return replace(cache, pools=tuple(replace(pool, blocks=18) for pool in cache.pools))


def test_batch_chunks_preemption_and_reuse_change_no_token(engine):
    requests = greedy(mixed_requests())
    alone, cache = answers_alone(engine, requests), engine.scheduler.limits.cache
    preempted = {"cache": few_blocks(cache)}
    for limits in ({}, {"reuses_prefixes": False}, {"max_step_tokens": 9}, preempted):
        require_tokens(engine, requests, alone, **limits)
    assert len({tuple(tokens) for tokens in alone.values()}) == len(requests), "the same to everyone"


def test_a_cached_prefix_gives_the_tokens_of_a_computed_one(engine):
    prompt = tuple(np.random.default_rng(5).integers(0, 96, 40).tolist())
    first, second = (
        Submit(name, (*prompt, n), 8, SamplingParams(temperature=0.0)) for n, name in enumerate("ab")
    )
    missed, _ = answers(engine, [second], reuses_prefixes=False)
    both, load = answers(engine, [first, second], max_concurrent=1)
    assert load.cached_tokens_total == 40
    assert both["b"] == missed["b"]


def test_the_cache_is_as_large_as_the_ledger_says(engine):
    ledger, cache = engine.ready.ledger, engine.runner.forward_pass.cache
    assert ledger["kvCacheBytes"] == sum(array.nbytes for group in cache.groups for array in group)


@pytest.mark.parametrize(("name", "row_bytes"), FORMATS.items())
def test_a_token_takes_the_bytes_of_its_format(folder, name, row_bytes):
    ready = started(folder, kv_cache_dtype=name, max_context=64).ready
    assert ready.ledger["kvBytesPerToken"] == 3 * 2 * row_bytes


def test_formats_give_other_numbers_than_float32(folder):
    prompt = np.random.default_rng(6).integers(0, 96, 40).tolist()
    request = Submit("a", tuple(prompt), 40, SamplingParams(temperature=0.0))
    plain, coarse = (
        answers(started(folder, kv_cache_dtype=name), [request])[0]["a"] for name in ("bf16", "turbo3")
    )
    assert plain != coarse


def test_heads_that_a_format_cannot_hold_are_refused(tmp_path):
    narrow = write_tiny(tmp_path / "tiny")  # heads of 8 channels
    with pytest.raises(
        ConfigError, match="turbo4 holds heads of a multiple of 16 channels, this model's have 8"
    ):
        started(narrow, kv_cache_dtype="turbo4")
    with pytest.raises(ConfigError, match=r"kv-cache-bf16-layers\) is 1; of this model's 2 layers 0 to 0"):
        started(narrow, kv_cache_dtype="fp8", kv_cache_bf16_layers=1)
