"""Deterministic mode: a request gets the same tokens alone, in any batch, with hits, and preempted.

Two hundred requests of mixed lengths, greedy and sampled, on a model of random weights at a published shape.
Set WISP_TEST_RECORD to a file to keep what was found, a line a case.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wisp_plan.memory.cache import one_pool
from wisp_runtime.engine import loop
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.transport.messages import SamplingParams, Shutdown, Submit

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
SHAPE, COUNT, CONTEXT, SEQUENCES = "llama-3.2-1b", 200, 2048, 48


class ScriptedChannel:
    """Sends requests, so many more each time it is asked, and keeps what comes back."""

    def __init__(self, requests, at_once):
        self.waiting, self.at_once = list(requests), at_once
        self.tokens = {request.request_id: [] for request in requests}
        self.load = None

    def receive(self, *, waits):
        if not self.waiting:
            return [Shutdown()] if waits else []
        sent, self.waiting = self.waiting[: self.at_once], self.waiting[self.at_once :]
        return sent

    def send(self, message):
        for event in message.events:
            assert event.finish != "error", event.message
            self.tokens[event.request_id].append(event.token)
        self.load = message.load


@pytest.fixture(scope="module")
def target(device):
    from wisp_runtime.bench.target import TargetOptions, open_target
    from wisp_runtime.errors import ConfigError

    options = TargetOptions(
        SHAPE, "cuda", SEQUENCES, CONTEXT, kv_tokens=SEQUENCES * CONTEXT, deterministic=True
    )
    try:
        yield open_target(options)
    except ConfigError as error:
        pytest.skip(error.message)
    device.stream.use()


@pytest.fixture(scope="module")
def requests(target):
    random = np.random.default_rng(17)
    beginnings = [tuple(random.integers(0, target.spec.vocab, 400).tolist()) for _ in range(4)]
    made = []
    for n in range(COUNT):
        own = tuple(random.integers(0, target.spec.vocab, int(random.choice([1, 7, 30, 129, 600]))).tolist())
        prompt = (beginnings[n % 4][: int(random.integers(0, 401))] if n % 3 else ()) + own
        sampling = SamplingParams(temperature=0.0 if n % 2 else 0.9, seed=n)
        made.append(Submit(f"r{n}", prompt, int(random.integers(4, 60)), sampling, ignore_eos=True))
    return made


@pytest.fixture(scope="module")
def alone(target, requests):
    return {each.request_id: serve(target, [each])[0][each.request_id] for each in requests}


def serve(target, requests, at_once=COUNT, blocks=None, **limits):
    cache = one_pool(blocks, target.limits.block_tokens) if blocks else target.limits.cache
    limits = replace(target.limits, **limits, cache=cache)
    channel = ScriptedChannel(requests, at_once)
    loop.run(channel, make_scheduler(limits), target.runner)
    return channel.tokens, channel.load


CASES = {
    "all at once, no prefix cache": {"reuses_prefixes": False},
    "three more a step, in another order": {"at_once": 3, "order": 5},
    "in other batches": {"at_once": 17, "order": 8, "max_concurrent": 9},
    "with few blocks, so that some are preempted": {"blocks": 70, "order": 7},
    "prompts cut into small steps": {"max_step_tokens": 200, "mixed_step_tokens": 96},
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_request_gets_what_it_gets_alone(target, requests, alone, case, request):
    settings = dict(case)
    order = np.random.default_rng(settings.pop("order", 0)).permutation(COUNT)
    found, load = serve(target, [requests[i] for i in order], **settings)
    differing = [name for name, tokens in found.items() if tokens != alone[name]]
    result = {
        "case": request.node.callspec.id,
        "requests": COUNT,
        "tokens": sum(map(len, found.values())),
        "differing": len(differing),
        "preemptions": load.preemptions_total,
        "cached_tokens": load.cached_tokens_total,
    }
    print(result)
    if path := os.environ.get("WISP_TEST_RECORD"):
        with Path(path).open("a") as record:
            record.write(json.dumps(result) + "\n")
    assert differing == []
    assert load.preemptions_total > 0 or "blocks" not in case
    assert load.cached_tokens_total > 0 or "reuses_prefixes" in case
