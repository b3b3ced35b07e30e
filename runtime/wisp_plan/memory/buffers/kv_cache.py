"""Buffers beside a quantized KV cache: rows of a step in bf16, and of prompts' contexts."""

from __future__ import annotations

from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.buffers.widths import widest
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec

KV_SCRATCH = "kv_scratch"

RUN_FIELDS = 4
"""Numbers of a run of blocks, int32 each: a sequence's in the scratch cache, one after another."""


def scratch_blocks(step: StepSizes) -> int:
    """Return the blocks of the scratch cache: a step's tokens, or the longest sequence."""
    return -(-max(step.max_tokens, step.max_sequences, step.max_context) // step.block_tokens)


def quantized_kv(spec: ModelSpec, step: StepSizes) -> tuple[Buffer, ...]:
    """Return the scratch cache of one layer in bf16, and the table of its blocks."""
    if not step.kv.inner.is_quantized or not spec.mixers(AttentionSpec):
        return ()
    blocks = scratch_blocks(step)
    tokens = blocks * step.block_tokens
    rows = (tokens, widest(spec, "kv_size"))
    return (
        Buffer(f"{KV_SCRATCH}.keys", rows, "bfloat16"),
        Buffer(f"{KV_SCRATCH}.values", rows, "bfloat16"),
        Buffer(f"{KV_SCRATCH}.slots", (tokens,), "int64"),
        scratch_table(blocks),
    )


def scratch_table(blocks: int) -> Buffer:
    """Return the block table of the scratch cache: 0, 1, …."""
    return Buffer(f"{KV_SCRATCH}.table", (blocks, 1), "int32")


def block_runs(sequences: int, name: str = KV_SCRATCH) -> Buffer:
    """Return the runs of blocks that a step dequantizes, one a sequence; ``name`` begins the buffer's."""
    return Buffer(f"{name}.runs", (sequences, RUN_FIELDS), "int32")
