"""All buffers of a GPU; ``tests/gpu/engine/test_preflight.py`` compares their total with a GPU's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wisp_plan.memory.buffers.attention import (
    HOPPER_PREFILL_TILES,
    PREFILL,
    PrefillTile,
    attention,
    work_tiles,
)
from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.buffers.elementwise import elementwise
from wisp_plan.memory.buffers.gemm import gemm
from wisp_plan.memory.buffers.inputs import inputs, rope_tables
from wisp_plan.memory.buffers.kv_cache import KV_SCRATCH, block_runs, quantized_kv
from wisp_plan.memory.buffers.moe import moe
from wisp_plan.memory.buffers.persistent import persistent
from wisp_plan.memory.buffers.recurrent import recurrent
from wisp_plan.memory.buffers.sampling import sampling
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec

_HOST_TABLES = {table.name for table in (work_tiles(1, PREFILL), work_tiles(1, KV_SCRATCH), block_runs(1))}


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
        *moe(spec, step),
        *attention(spec, step, prefill_tiles),
        *quantized_kv(spec, step),
        *recurrent(spec, step),
        *sampling(spec, step),
    )


def max_upload_bytes(buffers: Iterable[Buffer]) -> int:
    """Return the bytes of the largest table that the host plans for a step, beside the step's inputs."""
    return max((buffer.size_bytes for buffer in buffers if buffer.name in _HOST_TABLES), default=0)
