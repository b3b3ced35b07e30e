"""Buffers of GEMMs: a result for each role, and the partial results of split-K tiles."""

from __future__ import annotations

from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.buffers.widths import widest, widest_ffn
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec

BLOCK_M = 128
"""Weight rows of a tile that may be split along K."""

BLOCK_N = (8, 16, 32, 64, 96, 128, 160, 192, 224, 256)
"""Tokens of a tile: each has its kernels."""


def gemm(spec: ModelSpec, step: StepSizes) -> tuple[Buffer, ...]:
    """Return the results of a layer's GEMMs, the logits, split-K tiles, and activations in E4M3."""
    tokens = step.max_tokens
    qkv = widest(spec, "projected_size")
    return (
        Buffer("qkv", (tokens, qkv), "bfloat16"),
        Buffer("output", (tokens, spec.hidden), "bfloat16"),
        Buffer("swiglu", (tokens, widest_ffn(spec)), "bfloat16"),
        *gate_up(spec, tokens),
        Buffer("logits", (step.max_sequences, spec.vocab), "float32"),
        *split_k(tokens, step.sm_count),
        *(token_codes(tokens, step.code_columns) if step.code_columns else ()),
    )


def gate_up(spec: ModelSpec, tokens: int) -> tuple[Buffer, ...]:
    """Return gate and up of MLPs whose GEMM does not apply the activation itself."""
    inner = widest_ffn(spec, lambda mlp: mlp.is_gated and (mlp.activation, mlp.gate_scale) != ("silu", 1))
    return (Buffer("gate_up", (tokens, 2 * inner), "bfloat16"),) if inner else ()


def split_k(max_tokens: int, sm_count: int) -> tuple[Buffer, Buffer]:
    """Return two float32 tiles for each SM, as wide as the widest tile, and their arrival counters.

    An SM has one thread block, whose range of K steps ends at most one split tile and begins one. Tiles of
    quantized weights are as wide as a power of two.
    """
    tiles, width = 2 * sm_count, 1 << (block_n(max_tokens) - 1).bit_length()
    return (
        Buffer("linear.partials", (tiles * BLOCK_M * width,), "float32"),
        Buffer("linear.arrivals", (tiles,), "uint32", is_zeroed=True),
    )


def token_codes(max_tokens: int, max_columns: int) -> tuple[Buffer, Buffer]:
    """Return activations in E4M3, and their scales: one for each 128 columns of a token."""
    groups, tokens = -(-max_columns // 128), padded_tokens(max_tokens)
    return (
        Buffer("linear.token_codes", (max_tokens * max_columns,), "uint8"),
        Buffer("linear.token_scales", (groups * tokens,), "float32"),
    )


def padded_tokens(tokens: int) -> int:
    """Return the tokens that scales are stored for: whole tiles read them."""
    return (tokens // BLOCK_N[-1] + 2) * BLOCK_N[-1]


def block_n(tokens: int) -> int:
    """Return the narrowest tile that holds ``tokens``, or the widest."""
    return next((width for width in BLOCK_N if width >= tokens), BLOCK_N[-1])
