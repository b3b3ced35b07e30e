"""Before the first weight is read: what the card has free, what a model will take, how each end is named."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_plan.memory.buffers.gpu import gpu_buffers  # noqa: E402
from wisp_plan.memory.ledger import compute_ledger, step_of  # noqa: E402
from wisp_plan.presets import shape_spec  # noqa: E402
from wisp_plan.units import GIB, MIB, format_size  # noqa: E402
from wisp_runtime.config import ServeConfig  # noqa: E402
from wisp_runtime.engine import startup  # noqa: E402
from wisp_runtime.errors import DoesNotFit  # noqa: E402
from wisp_runtime.models.load import random_model  # noqa: E402
from wisp_runtime.ops import registry  # noqa: E402
from wisp_runtime.ops.cuda.cuda_device import memory_of  # noqa: E402
from wisp_runtime.ops.cuda.device.arena import allocate  # noqa: E402
from wisp_runtime.ops.cuda.device.context_prefetch import ContextPrefetch  # noqa: E402

PART_OF_ALL = 0.02
"""How far the ledger may be from what was allocated: the target of the design."""


def test_the_card_says_what_it_has_and_what_we_hold(device):
    memory = memory_of(device)
    assert memory.device_name == device.name
    assert memory.sm_count == device.sm_count
    assert 0 < memory.free_bytes < memory.total_bytes
    print(f"{device.name}: {memory}")
    if memory.process_bytes is not None:
        held = allocate((64 << 20,), np.uint8, "a test")
        assert abs(memory_of(device).process_bytes - memory.process_bytes - (64 << 20)) <= 4 << 20
        del held


def test_a_context_made_early_is_the_one_that_cupy_uses(device):
    context = ContextPrefetch(device.index)
    assert context.wait() == device.capability
    assert not context.is_missing


def test_a_model_that_fits_is_given_what_is_left(device):
    spec, memory = shape_spec("smollm2-135m"), memory_of(device)
    fit = startup.require_fit(spec, ServeConfig(model="m"), memory)
    spare = int(memory.free_bytes * 0.9) + (memory.process_bytes or 0) - fit.ledger.total_bytes
    assert 0 <= spare < fit.block_tokens * fit.ledger.kv_bytes_per_token


def test_a_context_shrinks_to_what_a_crowded_card_has_left_or_is_refused_with_the_numbers(device):
    spec = replace(shape_spec("llama-3-8b"), max_context=131072)
    memory = memory_of(device)
    if memory.free_bytes < 21 * GIB:
        pytest.skip("the GPU has less than 21 GiB free")
    held = allocate((memory.free_bytes - 20 * GIB,), np.uint8, "what another process would hold")
    fit = startup.require_fit(spec, ServeConfig(model="m"), others(device, memory))
    assert 512 <= fit.max_context < 131072
    with pytest.raises(DoesNotFit, match=r"needs \d+\.\d GiB, the NVIDIA .* free; fits with .*maxContext"):
        startup.require_fit(spec, ServeConfig(model="m", max_context=131072), others(device, memory))
    del held
    held = allocate((memory.free_bytes - 2 * GIB,), np.uint8, "what another process would hold")
    with pytest.raises(DoesNotFit, match=r"has [12]\.\d GiB free; fits with gpu: a card of at least"):
        startup.require_fit(spec, ServeConfig(model="m"), others(device, memory))
    del held


def others(device, before):
    """Return the memory as it would be if what was allocated since ``before`` were another process's."""
    return replace(memory_of(device), process_bytes=before.process_bytes)


FAULTY = """
import json

import numpy as np
from wisp_runtime.errors import RuntimeFailure
from wisp_runtime.ops.cuda.cuda_device import memory_of
from wisp_runtime.ops.cuda.device.arena import Arenas
from wisp_runtime.ops.cuda.device.gpu import open_gpu
from wisp_runtime.ops.protocol.weights.upload import WeightDestination

device = open_gpu(0)
ops = Arenas(device, fuses_rope=False)
uploader = ops.uploader(1 << 20)
destination = WeightDestination(ops.weight_arena(64), "plain", 0, (64,), "BF16")
kernel = device.kernels.get("fill_random", "fill_random_vector")
wild = np.uint64(0x7F0000000000)
kernel.launch((1,), 256, wild, np.int32(64), np.int32(0), np.uint64(1), np.float32(1), np.float32(0))
seen = []
for attempt in (
    lambda: uploader.upload(destination, 128, lambda buffer: buffer[:128]),
    uploader.finish,
    lambda: ops.weight_arena(64),
    lambda: memory_of(device),
):
    try:
        attempt()
    except RuntimeFailure as failure:
        seen.append(failure.reason)
print(json.dumps(seen))
"""


def test_a_fault_on_the_gpu_ends_a_load_in_its_own_name(device):  # which has the kernels compiled
    ended = subprocess.run([sys.executable, "-c", FAULTY], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout.splitlines()[-1])
    assert seen[-3:] == ["KernelFault"] * 3  # the first may be asked for before the kernel has failed
    assert set(seen) == {"KernelFault"}


SERVED = [
    ("smollm2-135m", {}),
    ("qwen3-0.6b", {"max_concurrent": 8}),
    ("llama-3.2-1b", {"max_step_tokens": 2048}),
    ("llama-3-8b", {"max_concurrent": 64}),
    ("llama-3-8b", {"max_concurrent": 64, "quantization": "int4"}),
    ("llama-3-8b", {"max_concurrent": 8, "quantization": "int4", "deterministic": True}),
    ("llama-3-8b", {"max_concurrent": 32, "kv_cache_dtype": "fp8"}),
    ("smollm2-135m", {"quantization": "fp8"}),
    ("smollm2-135m", {"kv_cache_dtype": "turbo4", "kv_cache_bf16_layers": 2}),
]


@pytest.mark.parametrize(
    ("shape", "settings"),
    SERVED,
    ids=[" ".join((shape, *map(str, settings.values()))) for shape, settings in SERVED],
)
def test_what_is_allocated_is_what_was_predicted(shape, settings):
    spec = shape_spec(shape)
    config = ServeConfig(model="m", device="cuda", kv_cache_memory=2 * GIB, **settings)
    gc.collect()  # the model before this one
    device = registry.open_device("cuda")
    if config.deterministic:
        device.ops.set_batch_invariant()
    before = device.memory()
    if before.free_bytes < 22 * GIB:
        pytest.skip("the GPU has less than 22 GiB free")
    if config.quantization not in ("auto", *before.formats):
        pytest.skip(f"no kernels read {config.quantization}")
    fit = startup.require_fit(spec, config, before)
    model = random_model(spec, device.ops, quantization=config.quantization, formats=before.formats)
    limits = startup.limits_of(spec, config, fit)
    runner, _ = startup.make_runner(model, device, fit, limits, "auto")
    startup.smoke_test(runner, limits)
    measured = startup.measured(before, device)["measured"]
    ledger = fit.ledger
    predicted = ledger.total_bytes - ledger.context_bytes - ledger.graphs_bytes  # nothing is recorded yet
    show(spec, ledger, device, predicted, measured)
    assert abs(measured["allocatedBytes"] - predicted) <= PART_OF_ALL * ledger.total_bytes + 8 * MIB
    declared, allocated = buffers(spec, ledger, device)
    exact = [name for name in allocated if name.startswith(("step.", "kv_scratch."))]
    assert {name: allocated[name] for name in exact} == {name: declared.get(name) for name in exact}
    if measured["processBytes"] is not None and before.process_bytes is not None:
        assert abs(measured["processBytes"] - ledger.total_bytes) <= PART_OF_ALL * ledger.total_bytes


def buffers(spec, ledger, device):
    """Return the bytes of the workspace's buffers by name, by the ledger and on the GPU."""
    declared = {buffer.name: buffer.size_bytes for buffer in gpu_buffers(spec, step_of(spec, ledger.options))}
    return declared, {row["name"]: row["bytes"] for row in device.gpu.workspace.report()}


def show(spec, ledger, device, predicted, measured):
    """Print the ledger beside what there is, so that a row that is wrong can be corrected."""
    sizes = [format_size(size) for size in (predicted, measured["allocatedBytes"])]
    print("\npredicted {}, allocated {}; {}".format(*sizes, measured))
    assert compute_ledger(spec, ledger.options) == ledger
    declared, allocated = buffers(spec, ledger, device)
    for name in {**declared, **allocated}:
        print(f"  {name:28} declared {declared.get(name, 0):>14,}  allocated {allocated.get(name, 0):>14,}")
