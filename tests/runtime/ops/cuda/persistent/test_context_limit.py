"""Context up to which steps are persistent: measured of dense models, and of what a mixture's step reads."""

from __future__ import annotations

import pytest

from wisp_plan.kv_formats.fp8 import FP8
from wisp_plan.kv_formats.plain import BF16
from wisp_plan.memory.cache import kv_bytes_per_token
from wisp_plan.presets import shape_spec
from wisp_plan.weights.sizes import active_parameters, weight_bytes
from wisp_runtime.ops.cuda.persistent.context_limit import max_context_tokens


@pytest.mark.parametrize(
    ("weights", "kv_format", "factor"),
    [("bf16", BF16, 1), ("bf16", FP8, 1), ("fp8", BF16, 2), ("fp8_block", BF16, 1), ("int4", FP8, 2.5)],
)
def test_a_dense_models_limit_is_the_cache_of_two_fifths_of_its_weights(weights, kv_format, factor):
    spec = shape_spec("llama-3-8b")
    in_bf16 = 0.4 * weight_bytes(spec, "bf16", "cuda").weights / kv_bytes_per_token(spec, "bf16")
    assert max_context_tokens(spec, weights, kv_format) == int(factor * in_bf16)
    assert 48_000 < in_bf16 < 50_000  # both paths are even at 48,000


def test_of_a_mixture_only_the_experts_count_that_a_step_reads():
    spec = shape_spec("qwen3-30b-a3b")
    limit, token = max_context_tokens(spec, "bf16", BF16), kv_bytes_per_token(spec, "bf16")
    of_all = 0.4 * weight_bytes(spec, "bf16", "cuda").weights / token
    assert 0.4 * 2 * active_parameters(spec) / token < limit < 0.45 * of_all  # 8 sequences hit 52 of 128
