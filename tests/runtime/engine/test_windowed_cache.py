"""Small models whose caches give blocks back behind a window: nothing that is computed depends on it."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wisp_plan.memory.cache import CacheSizes, Pool, one_pool
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine import startup
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

sys.path.insert(0, str(Path(__file__).parent))
from test_engine_model import TINY, answers, write_tiny

WINDOW, BLOCK = 10, 4
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    config = TINY | {"architectures": ["MistralForCausalLM"], "sliding_window": WINDOW}
    folder = write_tiny(tmp_path_factory.mktemp("engine") / "mistral", config=config)
    settings = {"threads": 1, "block_tokens": BLOCK, "max_step_tokens": 24, "max_concurrent": 6}
    return startup.start(ServeConfig(model=str(folder), **settings), lambda _: None)


def test_the_cache_of_a_model_with_a_window_is_of_that_window(mistral):
    (pool,) = mistral.scheduler.limits.cache.pools
    assert pool.group.spec.window == WINDOW


prompts = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 30), st.integers(1, 40)),
    min_size=2,
    max_size=7,
)
"""Number of the beginning, its length, length of what follows, tokens to generate."""


@given(prompts, st.integers(10, 30), st.integers(1, 24), st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_batches_chunks_hits_and_preemption_change_no_token(mistral, prompts, blocks, step, reuses):
    limits = {"cache": one_pool(blocks, BLOCK, WINDOW), "max_step_tokens": max(step, 6)}
    check_together_is_alone(mistral, prompts, limits | {"reuses_prefixes": reuses})


def check_together_is_alone(engine, prompts, limits):
    """Check that what requests get together is what each gets alone; those too long for the cache are out."""
    random = np.random.default_rng(5)
    beginnings = random.integers(0, 96, (4, 60)).tolist()
    requests = [
        Submit(
            f"r{n}",
            (*beginnings[which][:shared], *random.integers(0, 96, own).tolist()),
            generated,
            GREEDY,
        )
        for n, (which, shared, own, generated) in enumerate(prompts)
    ]
    fitting = Scheduler(replace(engine.scheduler.limits, **limits))
    requests = [request for request in requests if fitting.submit(request) is None]
    together, _ = answers(engine, requests, **limits)
    for request in requests:
        alone, _ = answers(engine, [request], reuses_prefixes=False)
        assert together[request.request_id] == alone[request.request_id]


def test_a_long_sequence_needs_no_more_blocks_than_its_window_and_a_step(mistral):
    request = Submit("long", tuple(range(90)) * 2, 60, GREEDY)
    limits = {"cache": one_pool(10, BLOCK, WINDOW), "max_step_tokens": 24}  # 10 · 4 tokens of 240
    few, load = answers(mistral, [request], **limits)
    many, _ = answers(mistral, [request])
    assert few == many
    assert load.preemptions_total == 0


def test_a_hit_needs_the_blocks_within_the_window_alone(mistral):
    limits = {"cache": one_pool(20, BLOCK, WINDOW), "max_step_tokens": 24}
    first = Submit("first", tuple(range(90)), 1, GREEDY)
    again = Submit("again", (*range(90), 5, 6), 3, GREEDY)
    both, load = answers(mistral, [first, again], max_concurrent=1, **limits)
    missed, _ = answers(mistral, [again], reuses_prefixes=False)
    assert both["again"] == missed["again"]
    # Of 22 blocks of the first prompt 20 are left at most; the hit goes on after the last of them.
    assert load.cached_tokens_total == 88


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A small Qwen2 with a window in layers 0 and 2 of four."""
    kinds = ["sliding_attention", "full_attention"] * 2
    config = TINY | {"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 4, "layer_types": kinds}
    config |= {"use_sliding_window": True, "sliding_window": WINDOW}
    folder = write_tiny(tmp_path_factory.mktemp("engine") / "mixed", config=config)
    settings = {"threads": 1, "block_tokens": BLOCK, "max_step_tokens": 24, "max_concurrent": 6}
    return startup.start(ServeConfig(model=str(folder), **settings), lambda _: None)


def pools_of(engine, windowed, full):
    """Return the cache of two pools with that many blocks."""
    first, second = engine.scheduler.limits.cache.pools
    return CacheSizes(BLOCK, (Pool(first.group, windowed), Pool(second.group, full)))


def test_layers_with_and_without_a_window_have_caches_of_their_own(mixed):
    windowed, full = mixed.scheduler.limits.cache.pools
    assert (windowed.group.spec.window, windowed.group.layers) == (WINDOW, (0, 2))
    assert (full.group.spec.window, full.group.layers) == (None, (1, 3))


@given(prompts, st.integers(25, 60), st.integers(10, 30), st.integers(1, 24), st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_batches_chunks_hits_and_preemption_change_no_token_of_mixed_layers(
    mixed, prompts, full, windowed, step, reuses
):
    limits = {"cache": pools_of(mixed, windowed, full), "max_step_tokens": max(step, 6)}
    check_together_is_alone(mixed, prompts, limits | {"reuses_prefixes": reuses})


def test_the_blocks_behind_the_window_are_given_back_though_other_layers_keep_theirs(mixed):
    request = Submit("long", tuple(range(90)) * 2, 60, GREEDY)
    limits = {"cache": pools_of(mixed, 10, 60), "max_step_tokens": 24}  # 10 · 4 and 60 · 4 tokens of 240
    few, load = answers(mixed, [request], **limits)
    many, _ = answers(mixed, [request])
    assert few == many
    assert load.preemptions_total == 0


@pytest.mark.parametrize("past", [-1, 0, 1])  # prompts of window - 1, window and window + 1 tokens
def test_a_prompt_about_as_long_as_the_window_is_computed_alike_in_chunks(mixed, past):
    prompt = tuple(range(7, 7 + WINDOW + past))
    request = Submit("edge", prompt, 12, GREEDY)
    whole, _ = answers(mixed, [request])
    for step in (6, WINDOW - 1, WINDOW):
        chunked, _ = answers(mixed, [request], max_step_tokens=step)
        assert chunked == whole
