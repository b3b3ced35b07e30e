"""Deterministic mode without a persistent kernel: mixtures, hybrids and gpt-oss decode on the general path.

Published sizes with few layers and random weights. Answers are compared by tokens and by log-probabilities to
the bit, which every logit enters: alone, beside 1, 7 and 31 others, in other orders, with prefix hits, after
preemption, and with prompts cut into small steps.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wisp_runtime.engine import loop
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

sys.path.insert(0, str(Path(__file__).parent))
from test_deterministic import ScriptedChannel

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
LAYERS, SEQUENCES, CONTEXT, ANSWER = 4, 32, 2048, 24
LENGTHS = (1, 63, 64, 65, 130, 200, 321, 700)  # of prompts, a shared beginning apart
BEGINNING = 400
SHAPES = {  # how they are held
    "qwen3-30b-a3b": "auto",  # bf16
    "qwen3.6-35b-a3b": "fp8_block",  # three layers of Gated DeltaNet, one of attention
    "gpt-oss-20b": "auto",  # MXFP4; windows in two layers of four
    "falcon-h1-0.5b": "auto",  # bf16; Mamba-2 beside attention in each layer
}


class Recorded(ScriptedChannel):
    """Keeps log-probabilities beside the tokens, and the most sequences that ran at a time."""

    most_running = 0

    def send(self, message):
        for event in message.events:
            assert event.finish not in ("error", "refused"), event.message
            self.tokens[event.request_id].append((event.token, event.logprobs))
        self.load = message.load
        self.most_running = max(self.most_running, message.load.running)


@pytest.fixture(scope="module", params=SHAPES)
def target(request, device):
    from wisp_runtime.bench import target as bench
    from wisp_runtime.errors import ConfigError

    published = bench.spec_of(request.param)
    options = bench.TargetOptions(
        request.param,
        "cuda",
        SEQUENCES,
        CONTEXT,
        kv_tokens=SEQUENCES * CONTEXT,
        deterministic=True,
        quantization=SHAPES[request.param],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "spec_of", lambda _: replace(published, layers=published.layers[:LAYERS]))
        try:
            opened = bench.open_target(options)
        except ConfigError as error:
            pytest.skip(error.message)
    assert opened.strategy.path == "general"
    assert opened.strategy.is_deterministic
    yield opened
    device.stream.use()


@pytest.fixture(scope="module")
def requests(target):
    random = np.random.default_rng(5)
    beginning = tuple(random.integers(0, target.spec.vocab, BEGINNING).tolist())
    made = []
    for n in range(SEQUENCES):
        own = tuple(random.integers(0, target.spec.vocab, LENGTHS[n % len(LENGTHS)]).tolist())
        sampling = SamplingParams(temperature=0.8 * (n % 3 == 2), seed=n, logprobs=3)
        prompt = (beginning if n % 4 == 3 else ()) + own
        made.append(Submit(f"r{n}", prompt, ANSWER + n % 5, sampling, ignore_eos=True))
    return made


@pytest.fixture(scope="module")
def alone(target, requests):
    settings = {"reuses_prefixes": False}
    return {each.request_id: serve(target, [each], **settings).tokens[each.request_id] for each in requests}


def serve(target, requests, at_once=SEQUENCES, spare_blocks=None, **limits):
    limits = replace(target.limits, **limits)
    if spare_blocks is not None:
        longest = max(len(each.prompt) + each.max_tokens - 1 for each in requests)
        blocks = -(-longest // limits.block_tokens) + spare_blocks
        pools = tuple(replace(pool, blocks=min(blocks, pool.blocks)) for pool in limits.cache.pools)
        limits = replace(limits, cache=replace(limits.cache, pools=pools))
    channel = Recorded(requests, at_once)
    loop.run(channel, make_scheduler(limits), target.runner)
    return channel


@pytest.mark.parametrize("others", [1, 7, 31])
def test_an_answer_has_the_same_bits_alone_and_beside_others(target, requests, alone, others):
    for first in range(0, SEQUENCES, 1 + others):
        together = serve(target, requests[first : first + 1 + others], reuses_prefixes=False)
        assert [name for name, answer in together.tokens.items() if answer != alone[name]] == []
        assert together.most_running == 1 + others


CASES = {
    "three more a step, in another order": {"at_once": 3, "order": 5},
    "in other batches": {"at_once": 17, "order": 8, "max_concurrent": 9},
    # Each answer outgrows the block that admission leaves to spare: four or five are preempted.
    "with few blocks, so that some are preempted": {"spare_blocks": 9, "order": 7},
    "prompts cut into small steps": {"max_step_tokens": 200, "mixed_step_tokens": 96},
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_an_answer_has_the_same_bits_in_any_schedule(target, requests, alone, case):
    settings = dict(case)
    order = np.random.default_rng(settings.pop("order", 0)).permutation(SEQUENCES)
    found = serve(target, [requests[i] for i in order], **settings)
    print(target.options.shape, found.load)
    assert [name for name, answer in found.tokens.items() if answer != alone[name]] == []
    assert found.load.preemptions_total > 0 or "spare_blocks" not in case
    assert found.load.cached_tokens_total > 0


def test_answers_of_different_requests_differ(alone):
    answers = [tuple(token for token, _ in answer) for answer in alone.values()]
    assert len(set(answers)) == len(answers)
