"""The load of experts from the router's counters to the server: what served tokens were sent to, no more."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from test_engine_model import TINY, write_tiny
from test_mixtures import FAMILIES

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.expert_report import expert_report
from wisp_runtime.engine.transport.client import EngineClient
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

SETTINGS = {"device": "cpu", "threads": 1, "block_tokens": 4, "max_step_tokens": 48, "max_concurrent": 8}


class Counted:
    """Counters of two mixtures, in layers 1 and 3, the second of three experts alone."""

    layers, experts = (1, 3), (4, 3)

    def read(self):
        return np.array([[[6, 2, 0, 0], [3, 1, 0, 0]], [[1, 1, 1, 0], [1, 1, 1, 0]]])


def test_a_report_sums_tokens_and_hits_and_compares_the_busiest_expert_with_the_mean():
    report = expert_report(Counted(), steps=3)
    assert report.tokens == (7, 3, 1, 0)
    assert (report.hits, report.passes) == (7, 6)
    assert report.busiest == ((1, 3.0), (3, 1.0))


async def served(folder, requests):
    """Return reports before and after requests, and the load."""
    engine = await EngineClient.start(ServeConfig(str(folder), **SETTINGS))
    try:
        await asyncio.wait_for(engine.ready.wait(), 60)
        assert engine.experts is None
        await engine.read_experts()
        before = engine.experts
        for request in requests:
            assert [event async for event in engine.submit(request)][-1].finish == "length"
        await asyncio.gather(*(engine.read_experts() for _ in range(3)))
        return before, engine.experts, engine.load
    finally:
        await engine.shutdown()


def ask(name, prompt):
    greedy = SamplingParams(temperature=0.0)
    return Submit(name, tuple(prompt), 9, greedy, ignore_eos=True, use_prefix_cache=False)


@pytest.mark.parametrize("family", ["qwen3_moe, some layers dense", "mixtral"])
def test_the_engine_reports_what_its_router_counted_since_it_was_ready(tmp_path, family):
    config, _ = FAMILIES[family]
    folder, random = write_tiny(tmp_path / "m", config=config), np.random.default_rng(2)
    requests = [ask(str(n), random.integers(0, 96, 5 + n).tolist()) for n in range(3)]
    before, after, load = asyncio.run(served(folder, requests))
    mixtures = 1 if "dense" in family else 3
    assert (sum(before.tokens), before.hits, before.passes) == (0, 0, 0)  # the first token of the start
    # The last layer computes rows with logits alone, which both families' last layers differ in.
    computed = load.prompt_tokens_total + 8 * len(requests)
    assert after.passes == mixtures * load.steps
    in_last_layer = load.steps if family == "mixtral" else 0
    assert sum(after.tokens) == 2 * ((mixtures - (family == "mixtral")) * computed + in_last_layer)
    assert 2 * after.passes <= after.hits <= len(after.tokens) * after.passes
    assert all(1 <= ratio <= len(after.tokens) for _, ratio in after.busiest)


def test_an_engine_without_experts_is_not_asked(tmp_path):
    folder = write_tiny(tmp_path / "m", config=TINY)
    assert asyncio.run(served(folder, []))[:2] == (None, None)
