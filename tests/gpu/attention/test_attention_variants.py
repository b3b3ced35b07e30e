"""Attention variants in small models on the GPU against the CPU's: prompts, cached prefixes, decodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_plan.kv_formats.layers import KvLayers  # noqa: E402
from wisp_plan.memory.step import StepSizes  # noqa: E402
from wisp_plan.spec.attention import AttentionSpec  # noqa: E402
from wisp_plan.spec.layer import NormSpec  # noqa: E402
from wisp_plan.spec.model import dense_decoder  # noqa: E402
from wisp_plan.spec.rope import RopeSpec  # noqa: E402
from wisp_runtime.batch import StepKind  # noqa: E402
from wisp_runtime.layers.cache import allocate_blocks  # noqa: E402
from wisp_runtime.models.load import random_model  # noqa: E402
from wisp_runtime.models.single_sequence import BLOCK_TOKENS, blocks_of, sequence_batch  # noqa: E402
from wisp_runtime.ops.cpu.ops import CpuOps  # noqa: E402
from wisp_runtime.ops.cuda.device.workspace import Workspace  # noqa: E402
from wisp_runtime.ops.cuda.ops import CudaOps  # noqa: E402

CONTEXT = 512
STEPS = ((0, 200), (200, 1), (201, 1), (202, 150), (352, 1), (353, 1))  # first token and number of tokens
NAMES = ("tokens", "positions", "slots", "query_starts", "context_lengths", "block_tables", "logit_rows")
MIN_COSINE = {"bf16": 0.999, "fp8": 0.995, "turbo4": 0.97}

GPT_OSS = AttentionSpec(16, 2, 64, RopeSpec(), has_qkv_bias=True, has_output_bias=True, has_sinks=True)
# With a scale of 1/16 scores of normed heads are so large that half an ulp of bf16 costs 0.004 of the cosine.
QWEN = AttentionSpec(
    *(12, 2, 256, RopeSpec(theta=1e7, rotary_size=64)), has_qk_norm=True, has_output_gate=True, scale=1 / 128
)
MODELS = {  # attention of the layers in turn, and whether norms are zero-centred
    "sinks, windows and full": ((replace(GPT_OSS, window=128), GPT_OSS), False),
    "gates and zero-centred norms": ((QWEN,), True),
    "no positions": ((AttentionSpec(8, 2, 128, None),), False),
    "heads of several sizes": ((QWEN, replace(GPT_OSS, window=40), AttentionSpec(4, 4, 64, None)), True),
}


def spec_of(name):
    mixers, is_zero_centred = MODELS[name]
    sizes = {"layers": 6, "hidden": 512, "inner": 640, "vocab": 1000, "max_context": CONTEXT}
    spec = dense_decoder("Variant", "llama", **sizes, attention=mixers[0], norm_eps=1e-6)
    norms = NormSpec(1e-6, is_zero_centred)
    layers = (
        replace(layer, mixer=mixers[index % len(mixers)], norms=norms)
        for index, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=tuple(layers), final_norm=norms)


def on_gpu(ops, batch):
    others = batch.other_groups
    fields = {key: ops.from_host(getattr(batch, key)) for key in NAMES}
    there = replace(batch, **fields, other_groups=())
    return replace(there, other_groups=tuple(replace(there) for _ in others))


@pytest.mark.parametrize("kv", MIN_COSINE)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_cpu(device, random, name, kv):
    spec, cpu, gpu = spec_of(name), CpuOps(8), CudaOps(replace(device, workspace=Workspace()))
    expected_model, model = random_model(spec, cpu, 3), random_model(spec, gpu, 3)
    layers = KvLayers.of(kv, "cuda")
    gpu.reserve(spec, StepSizes(CONTEXT, CONTEXT, CONTEXT, BLOCK_TOKENS, kv=layers))  # logits of every row
    gpu.gpu.workspace.seal()
    sizes = {"blocks": blocks_of(CONTEXT), "block_tokens": BLOCK_TOKENS}
    expected_cache = allocate_blocks(spec, cpu, **sizes, kv=KvLayers.of(kv, "cpu"))
    cache = allocate_blocks(spec, gpu, **sizes, kv=layers)
    for array in (array for group in cache.groups for array in group):
        array.data.memset_async(0xFF, array.nbytes)  # NaN, or codes that would be
    ids = random.integers(0, spec.vocab, CONTEXT).astype(np.int32)
    for first, count in STEPS:
        rows = range(count)
        host = sequence_batch(ids[first : first + count], first, CONTEXT, rows, len(cache.groups))
        kind = StepKind.DECODE if count == 1 else None
        host = replace(host, kind=kind, other_groups=tuple(replace(o, kind=kind) for o in host.other_groups))
        expected = expected_model.forward(host, expected_cache).logits
        found = gpu.to_host(model.forward(on_gpu(gpu, host), cache).logits)
        norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        assert ((found * expected).sum(axis=1) / norms).min() > MIN_COSINE[kv], (first, count)
