"""The engine's steps on a GPU, with a small model of random weights: graphs, overlap, batches, reuse, memory.

Runs whose steps are the same give the same tokens to the bit. Where a run computes a sequence in another way
(another bucket, other chunks) bf16 rounds differently: then the first tokens that differ must have had logits
that are closer than that rounding.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

from wisp_plan.kv_formats.layers import KvLayers  # noqa: E402
from wisp_plan.memory.cache import cache_sizes, model_groups  # noqa: E402
from wisp_plan.spec.attention import AttentionSpec  # noqa: E402
from wisp_plan.spec.model import dense_decoder  # noqa: E402
from wisp_plan.spec.rope import RopeSpec  # noqa: E402
from wisp_runtime.engine import startup  # noqa: E402
from wisp_runtime.engine.cache.sequence_cache import scratch_cache  # noqa: E402
from wisp_runtime.engine.execution.graph_cache import GraphCache  # noqa: E402
from wisp_runtime.engine.execution.runner import run_step  # noqa: E402
from wisp_runtime.engine.loop import run  # noqa: E402
from wisp_runtime.engine.scheduling.plan import Chunk, Limits  # noqa: E402
from wisp_runtime.engine.scheduling.scheduler import Scheduler  # noqa: E402
from wisp_runtime.engine.scheduling.sequence import Sequence  # noqa: E402
from wisp_runtime.engine.transport.messages import SamplingParams, Shutdown, Submit  # noqa: E402
from wisp_runtime.models.load import random_model  # noqa: E402

SPEC = dense_decoder(
    "LlamaForCausalLM",
    "llama",
    layers=4,
    hidden=512,
    inner=1024,
    vocab=2056,
    max_context=512,
    attention=AttentionSpec(8, 2, 64, RopeSpec()),
    norm_eps=1e-5,
)
CACHE = cache_sizes(
    model_groups(SPEC, "bf16"),
    700,
    block_tokens=16,
    max_concurrent=32,
    max_step_tokens=256,
    max_context=512,
)
LIMITS = Limits(CACHE, 256, 32, 512, SPEC.vocab)
TOKENS = 64
NAN_BITS = 0xFFFF

BF16_NOISE = 0.15
"""Logits of random weights have a variance of about 1. A dozen roundings of 2^-9 relative on their way leave
an error of 0.015, five times that at most among 2056 of them, and twice that between two runs."""


class Rig:
    """A model and its runner on a stream of their own, ready to serve."""

    def __init__(self, decode_path):
        from wisp_runtime.ops.cuda.cuda_device import CudaDevice

        device = CudaDevice.open()
        self.ops, self.device = device.ops, device.gpu

        self.model = random_model(SPEC, self.ops, seed=3)
        fit = SimpleNamespace(cache=CACHE, kv=KvLayers())
        self.runner = startup.make_runner(self.model, device, fit, LIMITS, decode_path)[0]
        self.cache = self.runner.forward_pass.cache
        self.clear_cache()

    def clear_cache(self):
        """Make everything in the cache NaN: nothing may read what was not written."""
        for array in (self.cache.keys, self.cache.values):
            array.data.memset_async(0xFF, array.nbytes, self.device.stream)
        self.device.synchronize()

    def answers(self, requests, *, overlaps=True, records=True, blocks=None, **limits):
        """Serve ``requests``, all at once; return their tokens by id, and the final load."""
        if blocks is not None:
            limits["cache"] = replace(CACHE, pools=(replace(CACHE.pools[0], blocks=blocks),))
        runner = self.runner if overlaps else Synchronous(self.runner)
        if not records:
            self.runner.graphs = GraphCache(self.runner._stream)
        channel = ScriptedChannel(requests)
        run(channel, Scheduler(replace(LIMITS, **limits)), runner)
        self.runner.graphs.captures = True
        return channel.tokens, channel.load

    def logits_after(self, tokens):
        """Compute the logits after ``tokens`` in one chunk, on blocks that no answer needs any more."""
        sequence = Sequence(
            Submit("judge", tuple(tokens), 1), priority_key=(1, 1), max_length=999, eos=frozenset()
        )
        sequence.cache = scratch_cache(LIMITS.cache, len(tokens))
        step = self.runner._staging.stage((Chunk.prefill(sequence, 0, len(tokens), samples=True),))
        logits = self.ops.to_host(self.model.forward(step.batch, self.cache).logits)
        step.pinned.done.record()
        return logits[0]

    def require_explained(self, what, requests, ones, others):
        """Require equal answers but for ties that rounding decides; print how many there were."""
        parted, largest = 0, 0.0
        for request in requests:
            one, other = ones[request.request_id], others[request.request_id]
            assert len(one) == len(other) == request.max_tokens
            step = next((n for n in range(len(one)) if one[n] != other[n]), None)
            if step is None:
                continue
            logits = self.logits_after([*request.prompt, *one[:step]])
            gap = float(abs(logits[one[step]] - logits[other[step]]))
            best = float(logits.max() - max(logits[one[step]], logits[other[step]]))
            parted, largest = parted + 1, max(largest, gap)
            assert max(gap, best) < BF16_NOISE, f"{what}: {request.request_id} at {step}: {gap}, {best}"
        print(f"{what}: {parted} of {len(requests)} answers part, largest gap {largest:.4f}")


class Synchronous:
    """The same runner, waited for after each step."""

    overlaps = False

    def __init__(self, runner):
        self.forward = runner.forward


class ScriptedChannel:
    def __init__(self, requests):
        self.inbox, self.tokens, self.load = list(requests), {r.request_id: [] for r in requests}, None

    def receive(self, *, waits):
        messages, self.inbox = self.inbox or ([Shutdown()] if waits else []), []
        return messages

    def send(self, message):
        self.load = message.load
        for event in message.events:
            assert event.finish != "error", event.message
            self.tokens[event.request_id].append(event.token)


@pytest.fixture(scope="module", params=["auto", "general"])
def rig(device, request):
    yield Rig(request.param)
    device.stream.use()  # CuPy's current stream is again the one of the other tests


def requests(count, *, tokens=TOKENS, prefix=(), **sampling):
    random = np.random.default_rng(5)
    params = {"temperature": 0.0} | sampling
    return [
        Submit(
            f"r{n}",
            (*prefix, *random.integers(0, SPEC.vocab, 5 + 7 * n).tolist()),
            tokens,
            SamplingParams(**params, seed=n),
            ignore_eos=True,
        )
        for n in range(count)
    ]


KINDS = [{}, {"temperature": 1.0, "top_p": 0.95}, {"logprobs": 3}, {"presence_penalty": 0.5}]
KINDS.append({"repetition_penalty": 1.2})


@pytest.mark.parametrize("sampling", KINDS, ids=str)
def test_a_replayed_graph_gives_the_tokens_of_the_launches_it_was_captured_from(rig, sampling):
    asked = requests(13, **sampling)
    launched, _ = rig.answers(asked, records=False)
    assert len(rig.runner.graphs) == 0
    rig.answers(asked)
    assert len(rig.runner.graphs) > 0
    replayed, _ = rig.answers(asked)
    assert replayed == launched
    assert len({tuple(tokens) for tokens in launched.values()}) == 13


def test_a_graph_keeps_the_edges_that_let_kernels_overlap(rig):
    rig.answers(requests(3))
    recorded, _ = next(iter(rig.runner.graphs._captured.values()))
    edges, programmatic = recorded.edges()
    print(f"{edges} edges, {programmatic} programmatic")
    assert (edges > 4 * len(SPEC.layers)) == (rig.runner.forward_pass.persistent is None)
    assert programmatic == (edges if rig.device.arch.startswith("sm_9") else 0)


@pytest.mark.parametrize("sampling", KINDS, ids=str)
def test_overlapping_steps_give_the_tokens_of_steps_that_wait(rig, sampling):
    asked = requests(20, **sampling)
    waiting, _ = rig.answers(asked, overlaps=False)
    overlapping, load = rig.answers(asked)
    assert overlapping == waiting
    assert load.kv_blocks_used == 0


@pytest.mark.parametrize("penalty", [{"presence_penalty": 0.5}, {"repetition_penalty": 1.2}], ids=str)
def test_a_request_with_a_penalty_changes_no_token_of_the_others(rig, penalty):
    plain = requests(8)
    asked = [
        replace(request, sampling=replace(request.sampling, **penalty)) if n == 3 else request
        for n, request in enumerate(plain)
    ]
    waiting, _ = rig.answers(asked, overlaps=False)
    for _ in range(3):  # launched, captured, replayed
        overlapping, _ = rig.answers(asked)
        assert overlapping == waiting
    without, _ = rig.answers(plain)
    assert {key: tokens for key, tokens in waiting.items() if key != "r3"} == {
        key: tokens for key, tokens in without.items() if key != "r3"
    }


def test_a_request_gets_alone_what_it_gets_among_32(rig):
    asked = requests(32)
    together, _ = rig.answers(asked)
    alone = {}
    for request in asked[::3]:
        alone |= rig.answers([request])[0]
    rig.require_explained("alone, among 32", asked[::3], alone, together)


def test_a_cached_prefix_gives_what_a_computed_one_gives(rig):
    prefix = tuple(np.random.default_rng(9).integers(0, SPEC.vocab, 200).tolist())
    asked = requests(6, prefix=prefix)
    computed, load = rig.answers(asked, reuses_prefixes=False)
    assert load.cached_tokens_total == 0
    first = replace(asked[0], request_id="first", prompt=(*prefix, 1), max_tokens=1)
    channel, scheduler = ScriptedChannel([first]), Scheduler(LIMITS)
    run(channel, scheduler, rig.runner)
    channel = ScriptedChannel(asked)
    run(channel, scheduler, rig.runner)
    assert channel.load.cached_tokens_total >= 6 * 192
    rig.require_explained("cached, computed", asked, channel.tokens, computed)


def test_a_preempted_request_gives_what_an_undisturbed_one_gives(rig):
    asked = requests(10)
    undisturbed, load = rig.answers(asked)
    assert load.preemptions_total == 0
    squeezed, load = rig.answers(asked, blocks=24)
    assert load.preemptions_total > 0
    rig.require_explained("preempted, undisturbed", asked, squeezed, undisturbed)


def test_nothing_is_written_but_the_slots_of_the_sequences(rig):
    rig.clear_cache()
    asked = requests(5, tokens=20)  # decodes in a bucket of eight
    scheduler, used = Scheduler(replace(LIMITS, reuses_prefixes=False)), set()
    for request in asked:
        scheduler.submit(request)
    while not scheduler.is_idle:
        plan = scheduler.plan()
        for chunk in plan:
            places = range(chunk.start, chunk.start + chunk.tokens)
            used |= {(chunk.sequence.cache.tables[0][place // 16], place % 16) for place in places}
        scheduler.commit(plan, run_step(rig.runner, plan))
    expect = np.zeros((LIMITS.cache.pools[0].blocks, 16), bool)
    expect[tuple(np.array(sorted(used)).T)] = True
    for array in (rig.cache.keys, rig.cache.values):
        bits = cp.asnumpy(array.view(np.uint16))  # [L, P, Hkv, Tb, Dh]
        written = (bits != NAN_BITS).any(axis=(0, 2, 4))
        np.testing.assert_array_equal(written, expect)


def test_nothing_is_allocated_once_it_is_ready(rig):
    class Counting(cp.cuda.MemoryHook):
        name = "counting"
        asked = allocated = 0

        def malloc_preprocess(self, **_):
            self.asked += 1

        def alloc_preprocess(self, **_):
            self.allocated += 1

    asked = [request for kind in KINDS for request in requests(8, **kind)]
    asked = [replace(request, request_id=f"{n}") for n, request in enumerate(asked)]
    for _ in range(2):
        rig.answers(asked)  # the driver keeps graphs, recorded the second time, in memory of its own
    free_bytes = cp.cuda.runtime.memGetInfo()[0]
    with Counting() as counting:
        rig.answers(asked)
    print(f"CuPy's pool was asked {counting.asked} times, CUDA {counting.allocated} times")
    assert counting.allocated == 0
    assert cp.cuda.runtime.memGetInfo()[0] >= free_bytes


def test_how_long_a_step_takes_with_and_without_overlap(rig):
    """Asserts no time; the model is so small that a step is little but its launch and the host's work."""
    asked = requests(32, tokens=200)
    for overlaps in (False, True):
        rig.answers(asked, overlaps=overlaps)
        began_s = time.perf_counter()
        _, load = rig.answers(asked, overlaps=overlaps)
        took_ms = 1e3 * (time.perf_counter() - began_s)
        print(f"overlaps={overlaps}: {took_ms / load.steps:.3f} ms a step of up to 32")
