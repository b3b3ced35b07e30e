"""Estimate of the arrays that a step on the CPU holds at the same time."""

from __future__ import annotations

from wisp_plan.memory.buffers.inputs import rope_tables
from wisp_plan.memory.buffers.widths import widest, widest_ffn
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec

MAX_SCORES = 8 << 20
"""Attention scores that the CPU computes at once; the mask and temporaries take as much again."""

MAX_EXPERT_ROWS = 512
"""Tokens of an expert that the CPU computes at once."""

SCAN_TOKENS = 64
"""Tokens of a sequence that the CPU computes at once in Mamba-2 and Gated DeltaNet."""

_FLOAT32_BYTES = 4


def cpu_bytes(spec: ModelSpec, step: StepSizes) -> int:
    """Count the arrays that live at the same time in the CPU's largest step."""
    queries, keys = widest(spec, "query_size"), widest(spec, "kv_size")
    # Of a token: the residual, its norm, and the widest of attention, recurrent mixer and MLP.
    recurrent = max(_mamba_width(spec), _delta_net_width(spec))
    width = 2 * spec.hidden + max(2 * queries + 2 * keys, recurrent, 3 * widest_ffn(spec))
    activations = step.max_tokens * width * _FLOAT32_BYTES
    # Logits, and a copy that sampling sorts; a token's bitmask is one bit of V.
    sampling = step.max_sequences * (2 * spec.vocab * _FLOAT32_BYTES + spec.vocab // 8)
    tables = step.max_sequences * -(-step.max_context // step.block_tokens) * 4
    fixed = sampling + tables + _rope_bytes(spec) + _attention_bytes(spec, step)
    return activations + fixed + _experts_bytes(spec, step) + _scan_bytes(spec)


def _mamba_width(spec: ModelSpec) -> int:
    """Count a token's numbers in Mamba-2: projections, the scaled ones, the convolution, the result."""
    widths = (
        2 * mamba.projected_size + 3 * mamba.conv_size + 4 * mamba.inner for mamba in spec.mixers(MambaSpec)
    )
    return max(widths, default=0)


def _delta_net_width(spec: ModelSpec) -> int:
    """Count a token's numbers in Gated DeltaNet: projections, gates, and the convolution on its way."""
    widths = (
        6 * delta_net.conv_size + delta_net.value_heads * (delta_net.value_size + 2)
        for delta_net in spec.mixers(DeltaNetSpec)
    )
    return max(widths, default=0)


def _scan_bytes(spec: ModelSpec) -> int:
    """Count a chunk's arrays: decays and scores, heads of its tokens, and sums over the state."""
    mamba_sizes = (
        3 * mamba.heads * SCAN_TOKENS**2 + 2 * mamba.inner * mamba.state_size
        for mamba in spec.mixers(MambaSpec)
    )
    delta_sizes = map(_delta_chunk, spec.mixers(DeltaNetSpec))
    return max((*mamba_sizes, *delta_sizes), default=0) * _FLOAT32_BYTES


def _delta_chunk(delta_net: DeltaNetSpec) -> int:
    key, value = delta_net.key_size, delta_net.value_size
    tokens = 4 * SCAN_TOKENS**2 + SCAN_TOKENS * (3 * key + 6 * value)
    return delta_net.value_heads * (tokens + key * value)


def _rope_bytes(spec: ModelSpec) -> int:
    return sum(table.size_bytes for table in rope_tables(spec))


def _experts_bytes(spec: ModelSpec, step: StepSizes) -> int:
    """Count the mixtures' arrays: scores and choices, the sum, and some tokens of one expert on their way."""
    sizes = (
        step.max_tokens * (6 * moe.router.experts + spec.hidden)
        + MAX_EXPERT_ROWS * (6 * spec.hidden + 6 * moe.inner)
        for moe in spec.ffns(MoeSpec)
    )
    return max(sizes, default=0) * _FLOAT32_BYTES


def _attention_bytes(spec: ModelSpec, step: StepSizes) -> int:
    """Count float32 scores and one context's keys and values."""
    context, heads = step.max_context, widest(spec, "heads")
    queries = min(step.max_tokens, max(1, MAX_SCORES // max(1, heads * context)))
    scores = queries * heads * context
    return 2 * scores * _FLOAT32_BYTES + 2 * context * widest(spec, "kv_size") * _FLOAT32_BYTES
