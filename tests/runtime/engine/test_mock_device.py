"""Start, scheduling, loop and failures on a device that records launches and computes nothing."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from wisp_runtime.bench.checkpoint import write_checkpoint
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.loop import run
from wisp_runtime.engine.startup import start
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.engine.watchdog import Watchdog, WatchedRunner
from wisp_runtime.errors import DoesNotFit, GpuOutOfMemory, KernelFault, KernelsMissing

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from mock_device import Launch, MockDevice, registered
from scripted_channel import ScriptedChannel

LAYERS, HIDDEN, HEADS, HEAD_SIZE, INNER, VOCAB = 2, 64, 4, 16, 128, 512
PHASES = ["pull", "weights", "kernels", "firstToken"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    write_checkpoint("toy", folder, lambda *_: None)
    return folder


def started(folder, device, **settings):
    """Bring the model up on ``device``; also return the phases that ended."""
    ended = []
    config = {"max_concurrent": 6, "max_step_tokens": 32, "max_context": 128} | settings
    with registered(device):
        engine = start(
            ServeConfig(model=str(folder), device="mock", **config),
            lambda phase: ended.append(phase.name) if phase.is_done else None,
        )
    return engine, ended


def request(name, prompt_tokens, max_tokens, **sampling):
    params = SamplingParams(**{"temperature": 0.0} | sampling)
    return Submit(name, (3,) * prompt_tokens, max_tokens, params, ignore_eos=True, use_prefix_cache=False)


def test_a_start_reserves_before_the_first_launch_and_seals_after_every_size_has_run(folder):
    device = MockDevice()
    engine, ended = started(folder, device)
    assert ended == PHASES
    (reserve, before), (seal, warm) = device.log
    assert (reserve, before, seal) == ("reserve", 0, "seal")
    sampled = [launch.shape for launch in device.ops.launches[:warm] if launch.op == "sample"]
    assert sampled == [(6,), (6,), (4,), (2,), (1,)]  # the largest step, then each batch bucket
    assert max(launch.shape[0] for launch in device.ops.launches) == 32  # --max-step-tokens
    assert engine.ready.kernels["decodePath"] == "general"
    names = {buffer.name for buffer in device.reserved}
    assert {"residual", "qkv", "logits", "sampling.tokens", "inputs"} <= names


def test_a_prompt_launches_the_ops_of_each_layer_in_order(folder):
    device = MockDevice()
    engine, _ = started(folder, device)
    device.ops.launches.clear()
    run(ScriptedChannel(request("a", 5, 1)), engine.scheduler, engine.runner)
    qkv = [Launch("project_qkv", (5, HEADS, HEAD_SIZE)), Launch("paged_attention", (5, HEADS, HEAD_SIZE))]
    assert device.ops.launches == [
        Launch("embedding", (5, HIDDEN)),
        Launch("rmsnorm", (5, HIDDEN)),
        *qkv,
        Launch("linear", (5, HIDDEN)),
        Launch("add_rmsnorm", (5, HIDDEN)),
        Launch("swiglu", (5, INNER)),
        Launch("linear", (5, HIDDEN)),
        Launch("add_rmsnorm", (5, HIDDEN)),
        *qkv,
        Launch("gather_rows", (1, HIDDEN)),  # only the row that is sampled goes on
        Launch("linear", (1, HIDDEN)),
        Launch("add_rmsnorm", (1, HIDDEN)),
        Launch("swiglu", (1, INNER)),
        Launch("linear", (1, HIDDEN)),
        Launch("add_rmsnorm", (1, HIDDEN)),
        Launch("logits", (1, VOCAB)),
        Launch("sample", (1,)),
    ]


@pytest.mark.parametrize("is_late", [True, False])
def test_everyone_gets_the_scripted_tokens_of_their_positions(folder, is_late):
    device = MockDevice(lambda position: position * 7 % VOCAB, is_late=is_late)
    engine, _ = started(folder, device)
    requests = [request(f"r{n}", 1 + 11 * n % 40, 3 + n, presence_penalty=n % 3 == 1) for n in range(9)]
    channel = ScriptedChannel(*requests)
    run(channel, engine.scheduler, engine.runner)
    for submit in requests:
        first = len(submit.prompt)
        expect = [position * 7 % VOCAB for position in range(first, first + submit.max_tokens)]
        assert channel.tokens[submit.request_id] == expect


def test_steps_that_only_decode_are_replayed_in_batch_buckets(folder):
    device = MockDevice()
    engine, _ = started(folder, device)
    device.ops.launches.clear()
    run(ScriptedChannel(*(request(f"r{n}", 2, 9) for n in range(3))), engine.scheduler, engine.runner)
    rows = [launch.shape[0] for launch in device.ops.launches if launch.op == "logits"]
    assert rows == [3] + [4] * 8  # one prefill, then decodes of three sequences in a bucket of four
    assert sum(graph.launches for graph in device.stream.recordings) >= 7


def test_no_memory_for_the_buffers_ends_the_start(folder):
    device = MockDevice()
    device.has_memory = False
    with pytest.raises(GpuOutOfMemory, match="the workspace's buffer residual"):
        started(folder, device)
    assert device.ops.launches == []


def test_missing_kernels_of_a_kv_cache_end_the_start_before_weights_are_read(folder, monkeypatch):
    device, read = MockDevice(), []
    device.has_kv_kernels = False
    monkeypatch.setattr(device.ops, "weight_arena", read.append)
    with pytest.raises(KernelsMissing, match="quantize_kv"):
        started(folder, device, kv_cache_dtype="fp8")
    assert read == []


def test_a_model_that_does_not_fit_opens_no_weights(folder):
    with pytest.raises(DoesNotFit, match=r"the mock has .* free"):
        started(folder, MockDevice(free_bytes=1 << 20), max_context=1024)


def test_a_kernels_fault_ends_the_loop_with_its_name(folder):
    device = MockDevice()
    engine, _ = started(folder, device)
    device.ops.fault_after = 100
    channel = ScriptedChannel(request("a", 5, 60))
    with pytest.raises(KernelFault, match=r"running a step: .*CUDA error 700"):
        run(channel, engine.scheduler, engine.runner)
    assert 0 < len(channel.tokens["a"]) < 60


def test_a_step_that_does_not_end_in_time_is_reported(folder):
    device, reported = MockDevice(), []
    engine, _ = started(folder, device)
    device.ops.launch_s = 0.02
    ended = threading.Event()
    watchdog = Watchdog(lambda timeout_s: (reported.append(timeout_s), ended.set()), timeout_s=0.05)
    run(ScriptedChannel(request("a", 5, 2)), engine.scheduler, WatchedRunner(engine.runner, watchdog))
    assert ended.wait(60)
    assert reported == [0.05]
