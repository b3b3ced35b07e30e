"""Buffers that a step reads: its packed arrays, block tables, sampling parameters, and RoPE's tables."""

from __future__ import annotations

from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.buffers.sampling import HEADER_BYTES, ROW_BYTES
from wisp_plan.memory.buffers.widths import widest
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec

ARRAY_ALIGNMENT_BYTES = 16
_ARRAYS = 6  # slots, logit rows, tokens, positions, query starts, context lengths
_TOKEN_BYTES, _SEQUENCE_BYTES = 8 + 4 + 4, 8 + 4 + 4


def inputs(step: StepSizes) -> tuple[Buffer, Buffer]:
    """Return a step's sampling parameters and packed arrays in one buffer, and its block tables."""
    parameters = HEADER_BYTES + step.max_sequences * ROW_BYTES
    arrays = step.max_tokens * _TOKEN_BYTES + step.max_sequences * _SEQUENCE_BYTES
    size_bytes = parameters + arrays + _ARRAYS * ARRAY_ALIGNMENT_BYTES  # and the end of query_starts
    blocks = -(-step.max_context // step.block_tokens)
    return (
        Buffer("inputs", (size_bytes,), "uint8"),
        Buffer("block_tables", (step.max_sequences, blocks), "int32"),
    )


def rope_table(spec: ModelSpec) -> Buffer:
    """Return the cosines and sines of every position, ``[S, R / 2]`` each."""
    return Buffer("rope_table", (2, spec.max_context, widest(spec, "rotary_size") // 2), "float32")
