"""Buffers that a step reads: its packed arrays, block tables, sampling parameters, and RoPE's tables."""

from __future__ import annotations

from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.buffers.sampling import HEADER_BYTES, ROW_BYTES
from wisp_plan.memory.cache import model_groups
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.cache import State
from wisp_plan.spec.model import ModelSpec

ARRAY_ALIGNMENT_BYTES = 16
"""A packed array begins at a multiple of it."""


def inputs(spec: ModelSpec, step: StepSizes) -> tuple[Buffer, Buffer]:
    """Return a step's sampling parameters and packed arrays in one buffer, and its block tables."""
    groups = model_groups(spec, step.kv)
    states = sum(isinstance(group.spec, State) for group in groups)
    paged = len(groups) - states
    parameters = HEADER_BYTES + step.max_sequences * ROW_BYTES
    packed = packed_bytes(step.max_tokens, step.max_sequences, paged, has_states=states > 0)
    return Buffer("inputs", (parameters + packed,), "uint8"), block_tables(step, paged)


def packed_bytes(tokens: int, sequences: int, groups: int, *, has_states: bool) -> int:
    """Return the bytes of a step's packed arrays, what aligns them included.

    Slots (8 bytes a paged group), ids and positions of tokens; logit rows, query starts, context lengths and,
    of models with recurrent state, state slots of sequences.
    """
    of_tokens, of_sequences = 8 * groups + 4 + 4, 8 + 4 + 4 + 4 * has_states
    return tokens * of_tokens + sequences * of_sequences + (5 + groups + has_states) * ARRAY_ALIGNMENT_BYTES


def block_tables(step: StepSizes, groups: int) -> Buffer:
    """Return the blocks of each sequence in each paged group, whose tables begin aligned."""
    blocks, aligned = -(-step.max_context // step.block_tokens), ARRAY_ALIGNMENT_BYTES // 4
    return Buffer("block_tables", (groups, step.max_sequences, -(-blocks // aligned) * aligned), "int32")


def rope_tables(spec: ModelSpec) -> tuple[Buffer, ...]:
    """Return cosines and sines of every position, ``[S, R / 2]`` each, for each embedding that differs."""
    sizes = {(mixer.rope, mixer.rotary_size): mixer.rotary_size for mixer in spec.mixers(AttentionSpec)}
    return tuple(
        Buffer(f"rope_table.{index}", (2, spec.max_context, size // 2), "float32")
        for index, size in enumerate(sizes.values())
    )
