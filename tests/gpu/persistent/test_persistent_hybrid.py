"""Hybrids of Gated DeltaNet and gated attention in the persistent decode kernel, against the general path."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
from decode_batch import decode_batch

from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.cache import cache_sizes, model_groups
from wisp_plan.memory.step import StepSizes
from wisp_plan.presets import shape_spec
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.spec.attention import AttentionSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
TOKENS, BLOCKS, SEQUENCES = 16, 2600, 34
MIN_COSINE = 0.999
SHAPES = {  # shape, format of its weights, of keys and values
    "27b": ("qwen3.8-27b", "bf16", "bf16"),
    "27b block fp8": ("qwen3.8-27b", "fp8_block", "bf16"),
    "9b": ("qwen3.5-9b", "bf16", "bf16"),
}
CONTEXTS = {
    "one": [512],
    "padding": [512, 0, 1, 300, 0],
    "eight": [512, 1, 15, 16, 500, 511, 513, 640],
    "sixteen": [512 + n for n in range(16)],
    "thirty-two": [300 + 7 * n for n in range(32)],
}


class Subject:
    """A model of random weights with noise in its caches, and both ways to run a step of it."""

    def __init__(self, device, shape, quantization, kv, layers=5):
        from wisp_runtime.bench.contexts import fill_with_noise
        from wisp_runtime.layers.cache import allocate
        from wisp_runtime.models.load import random_model
        from wisp_runtime.ops.cuda.ops import CudaOps
        from wisp_runtime.ops.cuda.persistent.decode import PersistentDecode

        spec = shape_spec(shape)
        self.spec = spec = replace(spec, layers=spec.layers[:layers], vocab=4000, max_context=8192)
        self.ops = CudaOps(device)
        self.model = random_model(spec, self.ops, 7, quantization=quantization, formats=PACKED_FORMATS)
        limits = {"max_concurrent": SEQUENCES, "max_step_tokens": SEQUENCES, "max_context": 8192}
        groups = model_groups(spec, KvLayers.of(kv))
        sizes = cache_sizes(groups, BLOCKS, block_tokens=TOKENS, **limits)
        self.cache = allocate(sizes, self.ops)
        fill_with_noise(self.cache, self.ops)
        random = np.random.default_rng(3)
        self.noise = [self._noise(random, array) for array in self.cache.states]
        self.ops.reserve(spec, StepSizes(SEQUENCES, SEQUENCES, 8192, TOKENS))
        attention = spec.mixers(AttentionSpec)[0]
        rope = self.model.rope_table(attention)
        self.step = PersistentDecode(device, spec, self.model.weights, rope, SEQUENCES, self.cache.encodings)

    def _noise(self, random, array):
        from wisp_runtime.ops.cuda.device.arrays import to_device

        host = np.resize(random.standard_normal(1 << 20, np.float32) * 0.5, array.shape)
        return to_device(host.astype(array.dtype))

    def batch(self, contexts):
        from wisp_runtime.ops.cuda.device.arrays import to_device

        slots = np.random.default_rng(5).permutation(SEQUENCES)[: len(contexts)].astype(np.int32)
        slots[np.array(contexts) == 0] = -1
        blocks = range(self.cache.blocks)
        batch = decode_batch(contexts, self.spec.vocab, blocks, TOKENS, 1, to_device)
        return replace(batch, state_slots=to_device(slots))

    def run(self, step, batch):
        """Return the logits, and the states after the step, which begins with the same noise each time."""
        for array, noise in zip(self.cache.states, self.noise, strict=True):
            array[...] = noise
        logits = self.ops.to_host(step(batch)).copy()
        assert self.step.describe_hang() is None
        return logits, [self.ops.to_host(array[:SEQUENCES]).copy() for array in self.cache.states]

    def general(self, batch):
        return self.run(lambda batch: self.model.forward(batch, self.cache).logits, batch)

    def persistent(self, batch):
        cache = self.cache
        return self.run(lambda batch: self.step(batch, cache.groups, cache.states), batch)


@pytest.fixture(scope="module", params=list(SHAPES))
def subject(request, device):
    return Subject(device, *SHAPES[request.param])


def cosines(a, b):
    a, b = (x.reshape(len(x), -1).astype(np.float64) for x in (a, b))
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


@pytest.mark.parametrize("contexts", CONTEXTS.values(), ids=list(CONTEXTS))
def test_a_step_and_its_states_are_those_of_the_general_path(subject, contexts):
    batch, live = subject.batch(contexts), np.array(contexts) > 0
    (expected, their_states), (got, states) = subject.general(batch), subject.persistent(batch)
    slots = batch.state_slots.get()[live]
    found = [cosines(got[live], expected[live]).min()]
    found += [cosines(a[slots], b[slots]).min() for a, b in zip(states, their_states, strict=True)]
    print(f"cosines: logits {found[0]:.6f}, states {found[1]:.6f}, inputs {found[2]:.6f}")
    assert min(found) >= MIN_COSINE
    others = np.setdiff1d(np.arange(SEQUENCES), slots)
    for state, noise in zip(states, subject.noise, strict=True):
        assert np.array_equal(state[others], subject.ops.to_host(noise[:SEQUENCES])[others])


def test_the_same_step_gives_the_same_bits(subject):
    batch = subject.batch([512 + n for n in range(32)])
    first, states = subject.persistent(batch)
    for _ in range(3):
        again, more = subject.persistent(batch)
        assert np.array_equal(first, again)
        assert all(np.array_equal(one, other) for one, other in zip(states, more, strict=True))
