"""A small Mistral whose cache gives blocks back behind the window: nothing that is computed depends on it."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wisp_plan.memory.cache import one_pool
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
    limits = {"cache": one_pool(blocks, BLOCK, WINDOW), "max_step_tokens": max(step, 6)}
    limits["reuses_prefixes"] = reuses
    fitting = Scheduler(replace(mistral.scheduler.limits, **limits))
    requests = [request for request in requests if fitting.submit(request) is None]
    together, _ = answers(mistral, requests, **limits)
    for request in requests:
        alone, _ = answers(mistral, [request], reuses_prefixes=False)
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
