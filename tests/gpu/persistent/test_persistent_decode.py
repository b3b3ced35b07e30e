"""The persistent decode kernel against the general path, which is checked against transformers.

The two add in different orders and round at different places, so their logits differ as two runs in bf16 do:
cosines are compared. In deterministic mode a request's own numbers must not depend on the batch, bit for bit.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # without tests/conftest.py too: WITHHELD, the soak test
from decode_batch import decode_batch
from spec_changes import changed

from wisp_plan.memory.step import StepSizes
from wisp_plan.presets import shape_spec
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.spec.model import repeated_layers
from wisp_plan.spec.moe import MoeSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
TOKENS = 16  # of a KV block
MIN_COSINE = 0.9995

MODELS = {
    "llama-3-8b": {"layers": 2, "vocab": 4000},
    "llama-3.2-3b": {"layers": 2, "vocab": 4000},
    "qwen3-8b": {"layers": 2, "vocab": 4000},
    "qwen2.5-7b": {"layers": 2, "vocab": 4000},  # biases by heads; groups of 7
    "smollm2-135m": {"layers": 3},
}


def spec_of(name):
    return changed(shape_spec(name), **MODELS[name], max_context=8192)


def scaled(cache):
    """The cache with scales that differ by layer, if its format has any."""
    layers = []
    for index, layer in enumerate(cache.layers):
        encoding = layer.encoding
        if encoding.format.has_layer_scale:
            encoding = replace(encoding, k_scale=0.5 + index / 2, v_scale=1.5 - index / 4)
        layers.append(replace(layer, encoding=encoding))
    return replace(cache, layers=tuple(layers))


class Subject:
    """A model of random weights with a cache full of noise, and both ways to run a step of it."""

    def __init__(self, device, spec, blocks=4200, quantization="bf16", kv="bf16"):
        from wisp_runtime.bench.contexts import fill_with_noise
        from wisp_runtime.layers.cache import allocate_blocks
        from wisp_runtime.models.load import random_model
        from wisp_runtime.ops.cuda.ops import CudaOps
        from wisp_runtime.ops.cuda.persistent.decode import PersistentDecode

        self.spec, self.device, self.ops = spec, device, CudaOps(device)
        self.model = random_model(spec, self.ops, 7, quantization=quantization, formats=PACKED_FORMATS)
        self.cache = scaled(allocate_blocks(spec, self.ops, blocks=blocks, block_tokens=TOKENS, kv=kv))
        fill_with_noise(self.cache, self.ops)
        self.ops.reserve(spec, StepSizes(64, 64, spec.max_context, TOKENS))
        model = (
            self.model.weights,
            self.model.rope_table(repeated_layers(spec).attention),
            64,
            self.cache.encodings,
        )
        self.step = PersistentDecode(device, spec, *model)
        self.invariant_step = None
        if not spec.ffns(MoeSpec):
            self.invariant_step = PersistentDecode(device, spec, *model, batch_invariant=True)

    def batch(self, contexts, seed=1, blocks=None):
        """A step of sequences with so many tokens, the new one included; their blocks lie anywhere.

        ``blocks`` is a range of the cache's that they may have; None is all.
        """
        from wisp_runtime.ops.cuda.device.arrays import to_device

        own = blocks or range(self.cache.blocks)
        return decode_batch(contexts, self.spec.vocab, own, TOKENS, seed, to_device)

    def general(self, batch):
        return self.ops.to_host(self.model.forward(batch, self.cache).logits).copy()

    def persistent(self, batch, is_invariant=False):
        step = self.invariant_step if is_invariant else self.step
        logits = self.ops.to_host(step(batch, self.cache.groups)).copy()
        assert step.describe_hang() is None
        return logits

    def written(self, batch):
        """Keys and values of the batch's new tokens, all layers."""
        slots = batch.slots.get()
        slots = slots[slots >= 0]
        found = []
        for cache in (self.cache.keys, self.cache.values):
            for layer in range(len(self.spec.layers)):
                host = self.ops.to_host(cache[layer])
                found.append(host[slots // TOKENS, :, slots % TOKENS])
        return np.stack(found)


@pytest.fixture(scope="module", params=list(MODELS))
def subject(request, device):
    return Subject(device, spec_of(request.param))


def cosines(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


CONTEXTS = {
    "one": [512],
    "first token": [1],
    "at a block's bound": [16, 17, 32, 33, 1],
    "eight": [512, 1, 15, 16, 500, 511, 513, 640],
    "long": [7900],
    "nine": [513] * 9,
    "sixteen": [512 + n for n in range(16)],
    "seventeen, one of them long": [1024] * 16 + [7900],
    "thirty-two": [300 + 7 * n for n in range(32)],
    "padding": [512, 300, 0, 0],
    "sixty-four": [512 + n for n in range(64)],
}


@pytest.mark.parametrize("contexts", CONTEXTS.values(), ids=list(CONTEXTS))
def test_a_step_gives_what_the_general_path_gives(subject, contexts):
    batch = subject.batch(contexts)
    live = np.array(contexts) > 0
    expected = subject.general(batch)[live]
    expected_cache = subject.written(batch)
    got = subject.persistent(batch)[live]
    got_cache = subject.written(batch)
    found, found_cache = cosines(got, expected), cosines(got_cache, expected_cache)
    print(f"cosines: logits {found.min():.6f}, K and V {found_cache.min():.6f}")
    assert np.isfinite(got).all()
    assert found.min() >= MIN_COSINE
    assert found_cache.min() >= MIN_COSINE


@pytest.mark.parametrize("quantization", ["fp8", "int4", "nvfp4"])
def test_a_step_of_quantized_weights_gives_what_the_general_path_gives(device, quantization):
    subject = Subject(device, spec_of("llama-3-8b"), quantization=quantization)
    for contexts in (CONTEXTS["eight"], CONTEXTS["thirty-two"]):
        batch = subject.batch(contexts)
        found = cosines(subject.persistent(batch), subject.general(batch))
        print(f"{quantization}: {found.min():.6f}")
        assert found.min() >= MIN_COSINE


def test_the_same_step_gives_the_same_bits(subject):
    batch = subject.batch([512 + n for n in range(40)])
    first = subject.persistent(batch)
    for _ in range(5):
        assert np.array_equal(first, subject.persistent(batch))


def test_a_row_does_not_depend_on_the_batch(subject):
    contexts = [700, 33, 512, 1500, 16, 90, 1025, 511] + [100 + n for n in range(56)]
    batch = subject.batch(contexts)
    together = subject.persistent(batch, is_invariant=True)
    for size in (1, 5, 8, 9, 16, 17, 32, 33, 64):
        order = np.random.default_rng(size).permutation(len(contexts))[:size].tolist()
        part = replace(
            batch,
            tokens=batch.tokens[order],
            positions=batch.positions[order],
            slots=batch.slots[order],
            query_starts=batch.query_starts[: size + 1],
            context_lengths=batch.context_lengths[order],
            context_lengths_host=tuple(contexts[row] for row in order),
            block_tables=batch.block_tables[order],
            logit_rows=batch.logit_rows[:size],
        )
        assert np.array_equal(subject.persistent(part, is_invariant=True), together[order]), size


WITHHELD = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
import test_persistent_decode as tests
from wisp_runtime.errors import KernelFault
from wisp_runtime.ops.cuda.device import kernels
from wisp_runtime.ops.cuda.persistent import decode
from wisp_runtime.ops.cuda.device.gpu import open_gpu
from wisp_runtime.ops.cuda.device.driver import translate

decode.TIMEOUT_CLOCKS = 100_000_000
real = kernels.KernelSet._compiled
kernels.KernelSet._compiled = lambda self, source: (
    Path({cubin!r}) if source.op == "persistent_decode" else real(self, source)
)
device = open_gpu(0)
subject = tests.Subject(device, tests.spec_of("smollm2-135m"))
try:
    with translate("running a step"):
        subject.persistent(subject.batch([100]))
except KernelFault as error:
    print(error.message)
"""


def test_a_block_that_never_arrives_ends_the_step_in_a_named_reason(device, tmp_path):
    from wisp_runtime.errors import CompilerMissing
    from wisp_runtime.ops.cuda.device import build
    from wisp_runtime.ops.cuda.device.catalogue import Catalogue
    from wisp_runtime.ops.cuda.persistent.model import kernel_model

    catalogue = Catalogue()
    (source,) = catalogue.templates("hopper", "bf16", kernel_model(spec_of("smollm2-135m")))
    withheld = replace(source, defines=(*source.defines, "-DWISP_WITHHOLD_BLOCK=5"))
    job = build.Job(withheld, device.arch, tmp_path / "withheld.cubin")
    try:
        build.compile_one(job, build.find_nvcc(), catalogue.root / "include")
    except CompilerMissing as error:
        pytest.skip(error.message)
    program = WITHHELD.format(tests=str(Path(__file__).parent), cubin=str(job.cubin))
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    print(f"{time.monotonic() - began_s:.1f} s: {done.stdout.strip()}")
    said = "at the grid's barrier before layer 1, down, where "
    arrived, expected = re.search(said + r"(\d+) of (\d+) warpgroups had arrived", done.stdout).groups()
    assert int(arrived) == int(expected) - 2
    assert "--decode-path general" in done.stdout
