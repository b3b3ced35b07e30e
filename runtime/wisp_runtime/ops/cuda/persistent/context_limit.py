"""Limit of the context that a persistent decode step reads; above it the general path is faster. Pure."""

from __future__ import annotations

from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.kv_formats.plain import BF16 as BF16_CACHE
from wisp_plan.memory.cache import kv_bytes_per_token
from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.expert_reads import read_share, uniform_hits
from wisp_plan.weights.held import BF16, held_weights
from wisp_plan.weights.layout import held_bytes

_MAX_CACHE_FRACTION, _FP8_WEIGHTS_FACTOR, _QUANTIZED_FACTOR = 0.4, 2.0, 2.5
_SEQUENCES = 8
"""Sequences of a step whose experts count."""


def max_context_tokens(spec: ModelSpec, weight_format: str, kv_format: KvFormat) -> int:
    """Return the most tokens of cache that a step may read: those whose bf16 takes 0.4 of the bf16 weights.

    The kernel saves launches, but its blocks get equal parts of the cache, and some SMs are slower than
    others. An H200, Llama-3-8B, 16 sequences: 4.05 ms for 4.33 at 600 tokens each, 8.3 for 7.95 at 7,900;
    between them the two are even at about 48,000 tokens in all. Over keys and values in fp8 as well (16 of
    2,048 tokens 4.69 and 4.67, 8 of 7,900 5.30 and 5.18), but fp8 weights gain more from the kernel: 8
    of 7,900 3.92 and 4.40, 32 of 7,900 9.60 and 9.45. So do they over bf16 keys and values: 32 of 2,000 5.21
    and 6.26, of 4,000 7.55 and 8.42.

    Of a mixture only the experts count to which a step of eight sequences sends tokens; long contexts of
    mixtures were not timed.
    """
    hits = uniform_hits(spec, _SEQUENCES)
    read = sum(held_bytes(weight)[0] * read_share(weight, hits) for weight in held_weights(spec, BF16, ()))
    tokens = _MAX_CACHE_FRACTION * read / kv_bytes_per_token(spec, BF16_CACHE.name)
    if kv_format.is_quantized and weight_format != BF16:
        return int(tokens * _QUANTIZED_FACTOR)
    return int(tokens * (_FP8_WEIGHTS_FACTOR if weight_format == "fp8" else 1))
