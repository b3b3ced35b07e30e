"""Choice of a process's device, and the errors about an unusable GPU."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

import pytest
from spec_changes import changed

from wisp_plan.errors import LayersUnsupported
from wisp_plan.fit.request import FitRequest
from wisp_plan.hardware import kernel_layers
from wisp_plan.hardware.kernel_limits import excessive_sizes
from wisp_plan.presets import shape_spec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_plan.spec.rope import RopeSpec
from wisp_plan.units import GIB, MIB
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine import startup
from wisp_runtime.errors import ConfigError, DoesNotFit, GpuUnavailable, ModelUnsupported
from wisp_runtime.ops import registry
from wisp_runtime.ops.cuda import requirements
from wisp_runtime.ops.cuda.device import context_prefetch
from wisp_runtime.ops.protocol.device import Memory

has_gpu_libraries = find_spec("cupy") is not None
LLAMA = shape_spec("llama-3-8b")
H200 = Memory("cuda", "NVIDIA H200", 138 * GIB, 140 * GIB, 530 * MIB, 132)


class FakeContext:
    """A GPU of some compute capability, or none."""

    def __init__(self, capability):
        self.capability = capability
        self.is_missing = capability is None

    def wait(self):
        return self.capability


@pytest.mark.parametrize("capability", [None, (7, 5)])  # the T4 does not compute in bf16
def test_auto_is_the_cpu_where_no_gpu_could_serve(monkeypatch, capability):
    monkeypatch.setattr(registry, "find_spec", lambda _: object())
    assert registry.open_device("auto", threads=1, context=FakeContext(capability)).ops.device == "cpu"


def test_auto_is_the_cpu_where_cupy_is_not_installed(monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    assert registry.open_device("auto", threads=1, context=FakeContext((9, 0))).ops.device == "cpu"


def test_the_cpu_needs_no_gpu():
    assert registry.start_context("cpu") is None
    assert registry.open_device("cpu", threads=1).ops.device == "cpu"


@pytest.mark.skipif(has_gpu_libraries, reason="CuPy is installed")
def test_a_requested_gpu_without_its_libraries_is_an_error_with_a_remedy():
    with pytest.raises(GpuUnavailable, match=r"--device cuda: .* -r \.ci/requirements/run-gpu\.txt in"):
        registry.open_device("cuda", context=FakeContext(None))


@pytest.mark.skipif(has_gpu_libraries, reason="CuPy is installed")
def test_a_download_ends_when_the_requested_gpu_is_missing():
    calls = []
    for device in ("auto", "cpu"):
        startup._watch_for_gpu(device, FakeContext(None), lambda *now: calls.append(now))(1, 2)
    assert calls == [(1, 2), (1, 2)]
    with pytest.raises(GpuUnavailable):
        startup._watch_for_gpu("cuda", FakeContext(None), lambda *now: calls.append(now))(1, 2)
    startup._watch_for_gpu("cuda", FakeContext((9, 0)), lambda *now: calls.append(now))(2, 2)
    assert calls[-1] == (2, 2)


def test_without_a_driver_there_is_no_context_and_no_failure(monkeypatch):
    monkeypatch.setattr(context_prefetch, "_library", lambda *_: None)
    context = context_prefetch.ContextPrefetch()
    assert context.wait() is None
    assert context.is_missing
    context_prefetch._handle.cache_clear()
    assert context_prefetch.process_bytes() is None
    context_prefetch._handle.cache_clear()


class FakeLibrary:
    """A management library that lists these processes, by number and bytes."""

    def __init__(self, *processes):
        self._processes = processes

    def nvmlDeviceGetComputeRunningProcesses_v3(self, _handle, count, listed):
        for entry, process in zip(listed, self._processes, strict=False):
            entry.pid, entry.used = process
        count._obj.value = len(self._processes)
        return 0


UNKNOWN = (1 << 64) - 1


@pytest.mark.parametrize(
    ("processes", "held"),
    [
        ([(os.getpid(), 5), (0, 6)], 5),
        ([(0, 6)], 6),
        ([(0, 6), (0, 7)], None),
        ([(os.getpid(), UNKNOWN), (0, 6)], None),
        ([], None),
    ],
    ids=["ours", "alone under another number", "unknown owner", "ours, size unknown", "no process"],
)
def test_own_bytes_are_read_from_the_list_of_processes(monkeypatch, processes, held):
    monkeypatch.setattr(context_prefetch, "management_library", lambda: FakeLibrary(*processes))
    monkeypatch.setattr(context_prefetch, "_handle", lambda _: 1)
    assert context_prefetch.process_bytes() == held


def test_a_library_that_is_no_driver_is_none():
    assert context_prefetch._library("libc.so.6", "cuInit", 0) is None


def test_a_model_is_checked_against_what_the_card_has_free():
    fit = startup.require_fit(LLAMA, ServeConfig(model="m"), H200)
    assert (fit.fits, fit.quantization, fit.kv_dtype, fit.max_context) == (True, "bf16", "bf16", 8192)
    usable = int(0.9 * 138 * GIB) + 530 * MIB
    assert 0 <= usable - fit.ledger.total_bytes < 16 * fit.ledger.kv_bytes_per_token
    assert fit.to_dict()["contextBytes"] == 530 * MIB


@pytest.mark.parametrize(
    ("options", "alone", "mixed"),
    [
        ({}, 8192, 2048),
        ({"max_step_tokens": 4096}, 4096, None),  # as was said
        ({"max_concurrent": 1024, "max_context": 2048}, 8192, 2048),
        ({"max_concurrent": 1500, "max_context": 512}, 8192, 3000),
    ],
)
def test_a_step_with_decodes_is_smaller_unless_its_size_is_set(options, alone, mixed):
    config = ServeConfig(model="m", **options)
    limits = startup.limits_of(LLAMA, config, startup.require_fit(LLAMA, config, H200))
    assert (limits.max_step_tokens, limits.mixed_step_tokens) == (alone, mixed)


def test_an_unknown_context_changes_nothing_but_its_row():
    known, unknown = (
        startup.require_fit(LLAMA, ServeConfig(model="m"), replace(H200, process_bytes=held))
        for held in (530 * MIB, None)
    )
    assert known.kv_blocks == unknown.kv_blocks
    assert unknown.ledger.context_bytes == 0


def test_max_context_shrinks_when_it_may_and_the_model_is_refused_when_it_may_not():
    tight = replace(H200, free_bytes=17 * GIB)
    fit = startup.require_fit(LLAMA, ServeConfig(model="m"), tight)
    assert fit.fits
    assert 512 <= fit.max_context < 8192
    with pytest.raises(
        DoesNotFit, match=r"needs 1\d\.\d GiB, the NVIDIA H200 has 15\.\d GiB free; fits with max"
    ):
        startup.require_fit(LLAMA, ServeConfig(model="m", max_context=8192), tight)


def test_memory_held_by_other_processes_is_in_the_message():
    with pytest.raises(DoesNotFit) as caught:
        startup.require_fit(LLAMA, ServeConfig(model="m"), replace(H200, free_bytes=3 * GIB))
    assert "the NVIDIA H200 has 3.2 GiB free" in caught.value.message
    assert caught.value.message.endswith(". Other processes hold 136.5 GiB of its memory (see nvidia-smi)")
    assert caught.value.exit_code == 3
    assert caught.value.details["ledger"]["fits"] is False


def test_settings_that_no_card_could_satisfy_are_settings_errors():
    with pytest.raises(ConfigError, match="fp8 cannot be served"):
        startup.require_fit(LLAMA, ServeConfig(model="m", quantization="fp8"), H200)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"head_size": 100}, "have 100 channels, no multiple of 8; RoPE is applied to 100"),  # OpenLLaMA 3B
        ({"head_size": 320}, "heads of attention have 320 channels, over 256"),
        ({"heads": 32, "kv_heads": 1}, "32 query heads are more than 16 times 1 KV heads"),
        ({"vocab": (1 << 18) + 1}, "the vocabulary has 262145 tokens, over 262144"),
        ({"inner": 14340}, "an MLP has 14340 channels, no multiple of 8"),
    ],
)
def test_sizes_that_no_kernel_takes_are_refused_before_a_weight_is_read(sizes, says):
    spec = changed(LLAMA, rope=RopeSpec(), **sizes)
    with pytest.raises(ModelUnsupported, match=says):
        requirements.require_model(spec, 16)
    with pytest.raises(LayersUnsupported, match=f"the sizes of this .*{says}.*--device cpu"):
        FitRequest(max_concurrent=1).check(spec)
    FitRequest(max_concurrent=1, device="cpu").check(spec)


def test_layers_that_no_gpu_has_kernels_for_are_refused_before_a_weight_is_read(monkeypatch):
    monkeypatch.setitem(kernel_layers.WITHOUT_KERNELS, "layers of tomorrow", lambda _: True)
    with pytest.raises(ModelUnsupported, match=r"layers of tomorrow, which Llama.*--device cpu"):
        requirements.require_model(LLAMA, 16)


@pytest.mark.parametrize(
    ("router", "inner", "says"),
    [
        (RouterSpec(640, 8), 768, "a mixture has 640 experts, over 512"),
        (RouterSpec(64, 33), 768, "a mixture has 33 chosen experts, over 32"),
        (RouterSpec(12, 2, groups=12, chosen_groups=2), 768, "12 experts in 12 groups"),
        (RouterSpec(64, 8), 100, "experts have 100 channels, no multiple of 8"),
    ],
)
def test_mixtures_that_no_kernel_takes_are_refused_before_a_weight_is_read(router, inner, says):
    (layer,) = set(LLAMA.layers)
    mixture = replace(LLAMA, layers=(layer, replace(layer, ffn=MoeSpec(router, inner))))
    with pytest.raises(ModelUnsupported, match=says):
        requirements.require_model(mixture, 16)
    with pytest.raises(LayersUnsupported, match=says):
        FitRequest(max_concurrent=1).check(mixture)


def test_every_layers_size_is_checked_and_each_problem_named_once():
    (layer,) = set(LLAMA.layers)
    odd = replace(layer, ffn=replace(layer.ffn, inner=100))
    problems = excessive_sizes(replace(LLAMA, layers=(odd, layer, odd)))
    assert problems == ("an MLP has 100 channels, no multiple of 8",)


def test_blocks_that_no_kernel_takes_are_refused_on_a_gpu():
    with pytest.raises(ConfigError, match=r"--block-tokens 12: must be a multiple of 8"):
        requirements.require_model(LLAMA, 12)


class FakeDevice:
    def __init__(self, memory):
        self._memory = memory

    def memory(self):
        return self._memory


def test_what_was_allocated_is_shown_beside_what_was_predicted():
    now = replace(H200, free_bytes=20 * GIB, process_bytes=119 * GIB)
    measured = startup.measured(H200, FakeDevice(now))
    assert measured == {
        "measured": {"allocatedBytes": 118 * GIB, "processBytes": 119 * GIB},
        "gpu": {"name": H200.device_name, "memoryBytes": H200.total_bytes},
    }
    assert startup.measured(Memory("cpu", "this machine", GIB), FakeDevice(None)) == {}
