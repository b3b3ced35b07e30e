"""GPU-only code of benchmarks on fakes: overlapping steps, CUDA events around launches."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from wisp_plan.memory.cache import one_pool
from wisp_runtime.bench.baselines.comparison import torch_rows
from wisp_runtime.bench.contexts import fill_with_noise, make_prompts
from wisp_runtime.bench.harness import requests_of, run_script
from wisp_runtime.bench.profile.trace import HostClock, TracedDevice, Tracer
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.layers.cache import kv_cache

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from fake_device import fake_device_runner
from toy_engine import VOCAB


@pytest.mark.parametrize("is_late", [True, False])
def test_steps_that_overlap_are_counted_like_others(is_late):
    limits, rounds = Limits(one_pool(80, 4), 32, 12, 64, VOCAB), []
    prompts = make_prompts(3, 9, VOCAB - 1, seed=1)

    def script():
        rounds.append((yield requests_of(prompts, 8, "first", temperature=0.0)))
        rounds.append((yield requests_of(prompts, 8, "second", temperature=0.0)))

    run_script(script(), Scheduler(limits), fake_device_runner(limits, is_late=is_late))
    assert [sum(output.tokens for output in done.outputs) for done in rounds] == [24, 24]
    assert [len(done.steps_ms(3, skip=2)) for done in rounds] == [5, 5]  # eight full steps, six counted
    assert rounds[1].outputs[0].at_s > rounds[0].outputs[-1].at_s
    assert [max(output.cached_tokens for output in done.outputs) for done in rounds] == [0, 24]


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_noise_reaches_every_block_of_a_cache(kind):
    shape = (3, 70, 2, 16, 128)
    cache = kv_cache(np.full(shape, np.nan, kind), np.full(shape, np.nan, kind), 16)
    fill_with_noise(cache, SimpleNamespace(from_host=lambda array: array))
    for array in (cache.keys, cache.values):
        assert np.isfinite(array).all()
        assert abs(float(array.astype(np.float32).std()) - 1) < 0.01
    assert not np.array_equal(cache.keys, cache.values)


def test_results_of_transformers_become_rows_and_its_failures_are_reported(tmp_path):
    both = {"batch": 8, "context": 512, "transformers": "5.17.0", "torch": "2.11.0"}
    lines = [
        {"mode": "eager", "step_ms": 15.0, "first_token_ms": 20.5} | both,
        {"mode": "static", "error": "OutOfMemoryError: much"} | both,
        {"mode": "continuous", "step_ms": 9.0} | both,
    ]
    python, failures = tmp_path / "python", []
    python.write_text(
        "#!/bin/sh\ncat <<'END'\nsome warning\n" + "\n".join(map(json.dumps, lines)) + "\nEND\n"
    )
    python.chmod(0o755)
    rows = torch_rows(
        "toy", batches=[8], contexts=[512], steps=4, python=str(python), on_failure=failures.append
    )
    assert [(row.metric, row.path, row.value, row.batch) for row in rows] == [
        ("decode_step_ms", "transformers, eager", 15.0, 8),
        ("first_token_ms", "transformers, eager", 20.5, 8),
        ("decode_step_ms", "transformers, continuous batching", 9.0, 8),
    ]
    assert failures == ["transformers, static, batch 8: OutOfMemoryError: much"]


class FakeKernel:
    """A kernel of ``ops/cuda/device/kernels.py`` , reduced to its launch."""

    def __init__(self, name, launched):
        self.name, self.launched = name, launched

    def launch(self, *args, **keywords):
        self.launched.append((self.name, args, keywords))


@pytest.fixture
def gpu_events(monkeypatch):
    """The module, imported with fakes for CuPy and the kernels; ``order`` lists its calls."""
    order = []

    class Event:
        def record(self):
            order.append(self)

    cupy = ModuleType("cupy")
    cupy.uint8 = np.uint8
    cupy.empty = lambda size, kind: SimpleNamespace(
        nbytes=size, data=SimpleNamespace(memset_async=lambda value, size: order.append("busy"))
    )
    cupy.cuda = SimpleNamespace(
        Event=Event,
        get_elapsed_time=lambda begin, end: 0.001 * (order.index(end) - order.index(begin)),
        get_current_stream=lambda: SimpleNamespace(synchronize=lambda: order.append("waited")),
    )
    kernels = ModuleType("wisp_runtime.ops.cuda.device.kernels")
    kernels.Kernel = FakeKernel
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "wisp_runtime.ops.cuda.device.kernels", kernels)
    name = "wisp_runtime.bench.profile.gpu_events"
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module(name)
    module.order = order
    yield module
    sys.modules.pop(name, None)


class Ops:
    """A device with two launches a GEMM."""

    device = "cuda"

    def __init__(self, launched):
        self.kernels = [FakeKernel(name, launched) for name in ("linear", "linear_sum")]

    def linear(self, x):
        for kernel in self.kernels:
            kernel.launch((1,), 32, x, cluster=2)
        return x


def device_of(ops):
    sampler = SimpleNamespace(vocab=11, launch=lambda: ops.kernels[0].launch((1,), 32))
    return SimpleNamespace(ops=ops, sampler=sampler)


def test_every_launch_lies_between_two_events_and_no_graph_is_replayed(gpu_events):
    launched, tracer = [], Tracer(HostClock(), sees_kernels=False)
    device = TracedDevice(device_of(Ops(launched)), tracer)
    ops = device.ops
    target = SimpleNamespace(runner=SimpleNamespace(graphs=SimpleNamespace(captures=True)))
    original = FakeKernel.launch
    with gpu_events.watched_launches(target, tracer):
        assert not target.runner.graphs.captures
        ops.linear(0)  # a step that is not traced costs no events
        assert gpu_events.order == []
        with tracer.step() as spans:
            ops.linear(7)
            device.sampler.launch()
    assert device.sampler.vocab == 11
    assert [(span.phase, span.name) for span in spans] == [
        ("linear", "linear"),
        ("linear", "linear_sum"),
        ("sampling", "linear"),
    ]
    assert {span.ms for span in spans} == {0.001}
    assert launched[2] == ("linear", ((1,), 32, 7), {"cluster": 2})
    assert set(gpu_events.order[:-7]) == {"busy"}  # before the first launch, so that the GPU never waits
    assert gpu_events.order[-1] == "waited"
    assert FakeKernel.launch is original
    assert target.runner.graphs.captures
