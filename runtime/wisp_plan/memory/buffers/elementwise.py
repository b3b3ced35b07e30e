"""Buffers of embedding, norms and gathers."""

from __future__ import annotations

from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.buffers.widths import widest
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec


def elementwise(spec: ModelSpec, step: StepSizes) -> tuple[Buffer, ...]:
    """Return the residual ``[N, D]``, its norm, and the gathered rows of attention's results."""
    tokens, width = step.max_tokens, max(spec.hidden, widest(spec, "query_size"))
    return (
        Buffer("residual", (tokens, spec.hidden), "float32"),
        Buffer("normed", (tokens, spec.hidden), "bfloat16"),
        Buffer("rows", (step.max_sequences, width), "bfloat16"),
    )
