"""A model over each KV format on the GPU against the CPU's: prompts, cached prefixes and decode steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_plan.kv_formats.layers import KvLayers  # noqa: E402
from wisp_plan.memory.step import StepSizes  # noqa: E402
from wisp_plan.presets import shape_spec  # noqa: E402
from wisp_runtime.batch import Batch  # noqa: E402
from wisp_runtime.layers.cache import allocate_blocks  # noqa: E402
from wisp_runtime.models.kv_calibration import calibrate, keys_and_values  # noqa: E402
from wisp_runtime.models.load import random_model  # noqa: E402
from wisp_runtime.ops.cpu.ops import CpuOps  # noqa: E402
from wisp_runtime.ops.cuda.ops import CudaOps  # noqa: E402

TB, BLOCKS, TABLE = 16, 40, 20
STEPS = ((0, 100), (100, 1), (101, 1), (102, 150), (252, 1))  # first token and number of tokens, in order
NAMES = ("tokens", "positions", "slots", "query_starts", "context_lengths", "block_tables", "logit_rows")
# The sums of both differ in their last bits, so a few codes differ by one, in every layer.
MIN_COSINE = {"bf16": 0.999, "fp8": 0.995, "turbo8": 0.995, "nvfp4": 0.98, "turbo4": 0.98, "turbo3": 0.95}


@pytest.fixture(scope="module")
def models(device):
    spec = shape_spec("smollm2-135m")
    spec = replace(spec, layers=spec.layers[:6], max_context=1024)
    cpu, gpu = CpuOps(8), CudaOps(device)
    return random_model(spec, cpu, 3), cpu, random_model(spec, gpu, 3), gpu


def batch_of(ids, table, first, count):
    positions = np.arange(first, first + count)
    batch = Batch(
        tokens=ids[first : first + count],
        positions=positions.astype(np.int32),
        slots=table[0, positions // TB].astype(np.int64) * TB + positions % TB,
        query_starts=np.array([0, count], np.int32),
        context_lengths=np.array([first + count], np.int32),
        block_tables=table,
        logit_rows=np.arange(count),
        query_starts_host=(0, count),
        context_lengths_host=(first + count,),
    )
    return replace(batch, other_groups=(batch,))


@pytest.mark.parametrize(("name", "bf16_layers"), [*((name, 0) for name in MIN_COSINE), ("turbo4", 1)])
def test_logits_are_those_of_the_reference(models, random, name, bf16_layers):
    on_cpu, cpu, on_gpu, gpu = models
    layers = KvLayers.of(name, "cuda", bf16_layers)
    gpu.reserve(on_gpu.spec, StepSizes(512, 8, 1024, TB, kv=layers))
    sizes = {"blocks": BLOCKS, "block_tokens": TB}
    expected_cache = allocate_blocks(on_cpu.spec, cpu, **sizes, kv=KvLayers.of(name, "cpu", bf16_layers))
    cache = allocate_blocks(on_gpu.spec, gpu, **sizes, kv=layers)
    for array in (array for group in cache.groups for array in group):
        array.data.memset_async(0xFF, array.nbytes)  # NaN, or codes that would be
    ids = random.integers(0, on_cpu.spec.vocab, 320).astype(np.int32)
    table = random.permutation(BLOCKS).astype(np.int32)[None, :TABLE]
    for first, count in STEPS:
        host = batch_of(ids, table, first, count)
        there = replace(host, **{key: gpu.from_host(getattr(host, key)) for key in NAMES}, other_groups=())
        there = replace(there, other_groups=(there,))
        expected = on_cpu.forward(host, expected_cache).logits
        found = gpu.to_host(on_gpu.forward(there, cache).logits)
        norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        assert ((found * expected).sum(axis=1) / norms).min() > MIN_COSINE[name], (first, count)


def test_the_prompt_of_a_start_has_the_references_keys_and_values(models):
    """Before buffers are reserved: scales are measured then."""
    on_cpu, cpu, on_gpu, gpu = models
    expected, found = keys_and_values(on_cpu, cpu), keys_and_values(on_gpu, gpu)
    assert found.keys() == expected.keys()
    for layer, pair in expected.items():
        for rows, others in zip(pair, found[layer], strict=True):
            cosine = (rows * others).sum() / np.linalg.norm(rows) / np.linalg.norm(others)
            assert cosine > MIN_COSINE["bf16"]
    assert calibrate(on_gpu, gpu, KvLayers.of("fp8"), {}) == calibrate(
        on_cpu, cpu, KvLayers.of("fp8", "cpu"), {}
    )
