"""Buffers of the persistent decode kernel: what its thread blocks exchange, and the table of weights."""

from __future__ import annotations

from wisp_plan.memory.batch_sizes import BATCH_SIZES
from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.buffers.widths import widest, widest_ffn
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec

MAX_BLOCKS, MAX_PARTIALS = 160, 16
"""Thread blocks of the kernel, partial results of a sequence's attention."""

COUNTERS, LAYER_WORDS = 3, 13
"""Counters of the grid's barrier; of a layer pointers to its weights and two float32, its cache's scales."""


def persistent(spec: ModelSpec, step: StepSizes) -> tuple[Buffer, ...]:
    """Return the buffers of the kernel; counted on every GPU, though only a Hopper runs it."""
    rows = batch_size(max(step.max_sequences, step.min_batch))
    return *exchanged(spec, rows), layer_table(len(spec.layers))


def batch_size(sequences: int) -> int:
    """Return the variant for ``sequences``, or the largest."""
    return next((size for size in BATCH_SIZES if size >= sequences), BATCH_SIZES[-1])


def exchanged(spec: ModelSpec, rows: int) -> tuple[Buffer, ...]:
    """Return the buffers that thread blocks exchange, zeroed.

    Args:
        rows: sequences of the largest variant.
    """
    width, keys = widest(spec, "query_size"), widest(spec, "kv_size")
    return (
        _exchanged("pre_rope_qkv", (2 * rows, width + 2 * keys), is_float=True),
        _exchanged("normed", (rows, spec.hidden)),
        _exchanged("attended", (rows, width)),
        _exchanged("gated", (rows, widest_ffn(spec))),
        _exchanged("square_sums", (rows, MAX_BLOCKS), is_float=True),
        _exchanged("partials", (MAX_PARTIALS * rows, width), is_float=True),
        _exchanged("partial_stats", (MAX_PARTIALS * rows, widest(spec, "heads"), 2), is_float=True),
        Buffer("step.splits_done", (rows * widest(spec, "kv_heads"),), "uint32", is_zeroed=True),
        Buffer("step.counters", (COUNTERS,), "uint32", is_zeroed=True),
    )


def layer_table(layers: int) -> Buffer:
    """Return the pointers to each layer's weights, and its cache's scales."""
    return Buffer("step.layers", (layers, LAYER_WORDS), "uint64")


def _exchanged(name: str, shape: tuple[int, ...], *, is_float: bool = False) -> Buffer:
    return Buffer(f"step.{name}", shape, "float32" if is_float else "bfloat16", is_zeroed=True)
