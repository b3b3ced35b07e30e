"""The scratch memory of a step, buffer by buffer, at the largest step that the options allow.

On a GPU every buffer is one function here, so that the ledger is exact: what a function returns is what the
runtime allocates (``tests/gpu/test_preflight.py`` compares). On the CPU it is an estimate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wisp_plan.layout import padded
from wisp_plan.spec import ModelSpec

if TYPE_CHECKING:
    from wisp_plan.ledger import LedgerOptions

BF16_BYTES, FLOAT32_BYTES = 2, 4

MOST_PROCESSORS = 192
"""SMs of a card that nobody has named; no card has more."""

PART_TOKENS, PART_OUTPUTS = 128, 256
"""The largest tile whose float32 sums a matrix product puts aside, one for each SM."""

DECODE_PART_ROWS = 16384
"""Partial results that decode attention keeps of one step: heads of sequences, times their parts."""

CPU_SCORES = 8 << 20
"""Attention scores that the CPU backend computes at once; the mask and temporaries take as much again."""


def gpu_buffers(spec: ModelSpec, options: LedgerOptions) -> dict[str, int]:
    """Return the bytes of every buffer that a step uses on a GPU, by what is in it."""
    return {
        "residual": residual(spec, options),
        "normed": normed(spec, options),
        "qkv": qkv(spec, options),
        "attention": attention(spec, options),
        "output": output(spec, options),
        "swiglu": swiglu(spec, options),
        "logits": logits(spec, options),
        "product parts": product_parts(options),
        "decode parts": decode_parts(spec, options),
        "prefill work": prefill_work(spec, options),
        "sampling": sampling(spec, options),
        "inputs": inputs(options),
        "rotation": rotation(spec),
    }


def residual(spec: ModelSpec, options: LedgerOptions) -> int:
    """``[N, D]`` float32."""
    return options.max_step_tokens * spec.hidden * FLOAT32_BYTES


def normed(spec: ModelSpec, options: LedgerOptions) -> int:
    """``[N, D]`` bf16, what a norm gives."""
    return options.max_step_tokens * spec.hidden * BF16_BYTES


def qkv(spec: ModelSpec, options: LedgerOptions) -> int:
    """``[N, (Hq + 2 Hkv) Dh]`` bf16."""
    return options.max_step_tokens * (spec.heads + 2 * spec.kv_heads) * spec.head_size * BF16_BYTES


def attention(spec: ModelSpec, options: LedgerOptions) -> int:
    """``[N, Hq Dh]`` bf16."""
    return options.max_step_tokens * spec.heads * spec.head_size * BF16_BYTES


def output(spec: ModelSpec, options: LedgerOptions) -> int:
    """``[N, D]`` bf16, what attention's output and the MLP's down projection give."""
    return options.max_step_tokens * spec.hidden * BF16_BYTES


def swiglu(spec: ModelSpec, options: LedgerOptions) -> int:
    """``[N, F]`` bf16."""
    return options.max_step_tokens * spec.mlp * BF16_BYTES


def logits(spec: ModelSpec, options: LedgerOptions) -> int:
    """``[R, V]`` float32."""
    return options.max_concurrent * spec.vocab * FLOAT32_BYTES


def product_parts(options: LedgerOptions) -> int:
    """Float32 sums of a product whose inputs are divided among SMs, one tile an SM."""
    return options.processors * PART_TOKENS * PART_OUTPUTS * FLOAT32_BYTES


def decode_parts(spec: ModelSpec, options: LedgerOptions) -> int:
    """Partial results of decode attention (each with its maximum and sum), and a counter a head."""
    parts = DECODE_PART_ROWS * (spec.head_size + 2) * FLOAT32_BYTES
    return parts + options.max_concurrent * spec.heads * FLOAT32_BYTES


def prefill_work(spec: ModelSpec, options: LedgerOptions) -> int:
    """A list of what each thread block of prefill attention has to do."""
    tiles = -(-options.max_step_tokens // 64) + options.max_concurrent
    return tiles * spec.kv_heads * 16


def sampling(spec: ModelSpec, options: LedgerOptions) -> int:
    """A row's candidates, and a token's bit in its mask."""
    return options.max_concurrent * (spec.vocab * FLOAT32_BYTES + padded(spec.vocab, 32) // 8)


def inputs(options: LedgerOptions) -> int:
    """Token ids, positions and slots; of each sequence its block table, and what decides its draw."""
    table = -(-options.max_context // options.block_tokens)
    return options.max_step_tokens * 16 + options.max_concurrent * (table * 4 + 128)


def rotation(spec: ModelSpec) -> int:
    """Cosines and sines of every position, ``[S, R / 2]`` float32 each."""
    return spec.max_context * (spec.rope.rotary_size or spec.head_size) * FLOAT32_BYTES


def cpu_bytes(spec: ModelSpec, options: LedgerOptions) -> int:
    """Count the arrays that live at the same time in the CPU backend's largest step."""
    queries, keys = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    # Of a token: the residual, its norm, and the wider of attention and MLP.
    width = 2 * spec.hidden + max(2 * queries + 2 * keys, 3 * spec.mlp)
    activations = options.max_step_tokens * width * FLOAT32_BYTES
    # Logits, and a copy for sampling to sort; a token's bitmask is one bit of V.
    chosen = options.max_concurrent * (2 * spec.vocab * FLOAT32_BYTES + spec.vocab // 8)
    tables = options.max_concurrent * -(-options.max_context // options.block_tokens) * 4
    return activations + chosen + tables + rotation(spec) + _cpu_attention(spec, options)


def _cpu_attention(spec: ModelSpec, options: LedgerOptions) -> int:
    """Count float32 scores and one context's keys and values."""
    context = options.max_context
    queries = min(options.max_step_tokens, max(1, CPU_SCORES // (spec.heads * context)))
    scores = queries * spec.heads * context
    return 2 * scores * FLOAT32_BYTES + 2 * context * spec.kv_heads * spec.head_size * FLOAT32_BYTES
