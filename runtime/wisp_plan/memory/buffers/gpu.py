"""All buffers of a GPU; ``tests/gpu/engine/test_preflight.py`` compares their total with a GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence

from wisp_plan.memory.buffers.attention import HOPPER_PREFILL_TILES, PrefillTile, attention
from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.buffers.elementwise import elementwise
from wisp_plan.memory.buffers.gemm import gemm
from wisp_plan.memory.buffers.inputs import inputs, rope_tables
from wisp_plan.memory.buffers.kv_cache import quantized_kv
from wisp_plan.memory.buffers.persistent import persistent
from wisp_plan.memory.buffers.sampling import sampling
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec


def gpu_buffers(spec: ModelSpec, step: StepSizes) -> tuple[Buffer, ...]:
    """Return every buffer that serving ``spec`` needs beside weights and caches."""
    return (*op_buffers(spec, step), *persistent(spec, step), *inputs(spec, step), *rope_tables(spec))


def op_buffers(
    spec: ModelSpec, step: StepSizes, prefill_tiles: Sequence[PrefillTile] = HOPPER_PREFILL_TILES
) -> tuple[Buffer, ...]:
    """Return the buffers of the ops, the persistent kernel apart.

    Args:
        prefill_tiles: tiles of the prefill kernels, ascending by head size.
    """
    return (
        *elementwise(spec, step),
        *gemm(spec, step),
        *attention(spec, step, prefill_tiles),
        *quantized_kv(spec, step),
        *sampling(spec, step),
    )
