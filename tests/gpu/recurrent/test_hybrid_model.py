"""A hybrid of Gated DeltaNet and gated attention on the GPU against the CPU: prompts, then tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_plan.memory.cache import cache_sizes, model_groups  # noqa: E402
from wisp_plan.memory.step import StepSizes  # noqa: E402
from wisp_plan.presets import shape_spec  # noqa: E402
from wisp_plan.spec.delta_net import DeltaNetSpec  # noqa: E402
from wisp_plan.spec.layer import NormSpec  # noqa: E402
from wisp_runtime.batch import Batch  # noqa: E402
from wisp_runtime.layers.cache import allocate  # noqa: E402
from wisp_runtime.models.load import random_model  # noqa: E402
from wisp_runtime.ops.cpu.ops import CpuOps  # noqa: E402
from wisp_runtime.ops.cuda.ops import CudaOps  # noqa: E402

TB, BLOCKS = 16, 40
STEPS = ((0, 100), (100, 1), (101, 1), (102, 150), (252, 1))  # first token and number of tokens, in order
NAMES = (
    *("tokens", "positions", "slots", "query_starts", "context_lengths"),
    *("block_tables", "logit_rows", "state_slots"),
)
DELTA_NET = DeltaNetSpec(key_heads=2, value_heads=4, key_size=64, value_size=64)


def hybrid():
    """Return six layers of SmolLM2's sizes, two of three with Gated DeltaNet; norms are zero-centred."""
    spec = shape_spec("smollm2-135m")
    layer = replace(spec.layers[0], norms=NormSpec(1e-6, is_zero_centred=True))
    recurrent = replace(layer, mixer=DELTA_NET)
    gated = replace(layer, mixer=replace(layer.mixer, has_output_gate=True))
    return replace(spec, layers=(recurrent, recurrent, gated) * 2, max_context=1024)


def batch_of(ids, table, first, count, slot):
    positions = np.arange(first, first + count)
    return Batch(
        tokens=ids[first : first + count],
        positions=positions.astype(np.int32),
        slots=table[0, positions // TB].astype(np.int64) * TB + positions % TB,
        query_starts=np.array([0, count], np.int32),
        context_lengths=np.array([first + count], np.int32),
        block_tables=table,
        logit_rows=np.array([count - 1]),
        query_starts_host=(0, count),
        context_lengths_host=(first + count,),
        state_slots=np.array([slot], np.int32),
    )


def test_logits_and_states_are_those_of_the_cpu(device, random):
    spec, cpu, gpu = hybrid(), CpuOps(8), CudaOps(device)
    on_cpu, on_gpu = random_model(spec, cpu, 3), random_model(spec, gpu, 3)
    gpu.reserve(spec, StepSizes(512, 8, 1024, TB))
    caches = []
    for kv, ops in (("float32", cpu), ("bf16", gpu)):
        groups = model_groups(spec, kv)
        limits = {"max_concurrent": 4, "max_step_tokens": 512, "max_context": 512}
        caches.append(allocate(cache_sizes(groups, BLOCKS, block_tokens=TB, **limits), ops))
    ids = random.integers(0, spec.vocab, 320).astype(np.int32)
    table = random.permutation(BLOCKS)[None, :32].astype(np.int32)
    for first, count in STEPS:
        host = batch_of(ids, table, first, count, slot=2)
        there = replace(host, **{key: gpu.from_host(getattr(host, key)) for key in NAMES})
        expected = on_cpu.forward(host, caches[0]).logits
        found = gpu.to_host(on_gpu.forward(there, caches[1]).logits)
        norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        assert ((found * expected).sum(axis=1) / norms).min() > 0.999, (first, count)
        for theirs, ours in zip(caches[0].states, caches[1].states, strict=True):
            state, other = theirs[2], gpu.to_host(ours[2])
            assert (state * other).sum() > 0.999 * np.linalg.norm(state) * np.linalg.norm(other)
