"""Launch the kernels of a mixture of experts on the emulated GPU, from the router to the weighted sum."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
from emulated_kernel import Emulated

from wisp_plan.memory.buffers.moe import max_tiles
from wisp_plan.quantization.packed_format import PackedFormat
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.portable_plan import GemmArguments, quantized_arguments
from wisp_runtime.ops.cuda.moe.arguments import (
    ChooseArguments,
    ExpertArguments,
    RouterArguments,
    SortArguments,
)
from wisp_runtime.ops.cuda.moe.plan import choose_entry, experts_entry, experts_grid, router_grid

BF16 = np.dtype(ml_dtypes.bfloat16)
CATALOGUE = Catalogue()
_CONSTANTS = constants()


@cache
def kernels_of(path: Path) -> Emulated:
    """Compile a source, once."""
    return Emulated(path, [*CATALOGUE.defines("ampere")])


def source_of(op: str, weight_format: str = "bf16") -> Path:
    """Return the source of an op on Ampere."""
    return CATALOGUE.choose(op, "ampere", weight_format).path


def aligned(array: np.ndarray) -> np.ndarray:
    """Copy an array to a multiple of 16 bytes."""
    memory = np.zeros(array.nbytes + 16, np.uint8)
    memory = memory[-memory.ctypes.data % 16 :][: array.nbytes].view(array.dtype).reshape(array.shape)
    memory[...] = array
    return memory


def route(
    x: np.ndarray,
    weight: np.ndarray,
    spec: RouterSpec,
    bias: np.ndarray | None = None,
    correction: np.ndarray | None = None,
    *,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return experts ``[N, K]``, their weights, and the logits ``[N, E]``."""
    tokens, columns = x.shape
    width, grid = router_grid(tokens, spec.experts, columns)
    kind = "f32_" if weight.dtype == np.float32 else ""
    logits = np.full((grid[2], tokens, spec.experts), np.nan, np.float32)
    arguments = RouterArguments(
        *(array.ctypes.data for array in (x, weight, logits)),
        *(x.strides[0] // 2, tokens, spec.experts, columns),
    )
    kernels_of(source_of("router_logits")).launch(
        f"router_logits_{kind}n{width}",
        [arguments],
        blocks=grid,
        threads=_CONSTANTS["router_threads"],
        seed=seed,
    )
    experts = np.full((tokens, spec.chosen), -1, np.int32)
    weights = np.full((tokens, spec.chosen), np.nan, np.float32)
    choose = ChooseArguments(
        logits.ctypes.data,
        *(None if array is None else array.ctypes.data for array in (bias, correction)),
        *(experts.ctypes.data, weights.ctypes.data),
        *(tokens, spec.experts, spec.chosen, grid[2], spec.groups, spec.chosen_groups),
        *(int(array is not None and array.dtype == np.float32) for array in (bias, correction)),
        *(spec.scores == "sigmoid", spec.normalizes, spec.scale),
    )
    threads = _CONSTANTS["choose_threads"]
    kernels_of(source_of("choose_experts")).launch(
        choose_entry(spec.experts),
        [choose],
        blocks=-(-tokens // (threads // 32)),
        threads=threads,
        seed=seed,
    )
    summed = np.zeros((tokens, spec.experts), np.float32)
    for part in logits:
        summed += part
    return experts, weights, summed


def sort(
    experts: np.ndarray, count: int, width: int, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return positions ``[N, K]``, tokens ``[N K]``, the tiles, and what was counted ``[2, E]``."""
    pairs = experts.size
    experts = aligned(experts)
    positions, rows = np.full(experts.shape, -1, np.int32), np.full(pairs, -1, np.int32)
    tiles = aligned(np.full((max_tiles(pairs, count, width), 4), -1, np.int32))
    number, counts = np.full(1, -1, np.int32), np.array([np.arange(count)] * 2)
    outputs = positions, rows, tiles, number, *counts
    kernels_of(source_of("sort_pairs")).launch(
        "sort_pairs",
        [
            SortArguments(
                experts.ctypes.data,
                *(array.ctypes.data for array in outputs),
                *(pairs, experts.shape[1], width),
            )
        ],
        blocks=count,
        threads=_CONSTANTS["sort_threads"],
        seed=seed,
    )
    return positions, rows, tiles[: number[0]], counts - np.arange(count)


def multiply(
    x: np.ndarray,
    matrices: np.ndarray,
    packed: PackedFormat | None,
    shape: tuple[int, int],
    bias: np.ndarray | None,
    store: int,
    lists: tuple[np.ndarray, np.ndarray],
    width: int,
    *,
    rows: np.ndarray | None,
    spare_tiles: int = 2,
    seed: int = 0,
    source: Path | None = None,
) -> np.ndarray:
    """Return a GEMM's result of each position.

    Args:
        matrices: ``[E, bytes]`` uint8, each packed.
        lists: tiles, and how many positions there are.
        rows: row of x of each position, or None.
        spare_tiles: tiles of the grid that do not exist.
    """
    tiles, positions = lists
    outputs, inputs = shape
    out = np.full((positions, outputs // 2 if store in (1, 3) else outputs), np.nan, BF16)
    gemm = {
        "weight": matrices.ctypes.data,
        "bias": None if bias is None else bias.ctypes.data,
        "out": out.ctypes.data,
        "partials": None,
        "arrivals": None,
        "x_stride": x.strides[0] // 2,
        "rows": outputs,
        "inputs": inputs,
        "tokens": positions,
    }
    arguments = GemmArguments(**gemm) if packed is None else quantized_arguments(packed, "linear", **gemm)
    tiles, count = aligned(tiles), np.array([len(tiles)], np.int32)
    experts = ExpertArguments(
        tiles.ctypes.data,
        count.ctypes.data,
        None if rows is None else rows.ctypes.data,
        matrices.strides[0],
        store,
    )
    kernels_of(source or source_of("experts", "bf16" if packed is None else packed.name)).launch(
        experts_entry(packed, width),
        [ctypes.c_void_p(x.ctypes.data), arguments, experts],
        blocks=(*experts_grid(outputs, len(tiles) + spare_tiles), 1),
        threads=_CONSTANTS["mma_gemm_threads"],
        seed=seed,
    )
    return out


def combine(
    y: np.ndarray, positions: np.ndarray, weights: np.ndarray, added: np.ndarray | None
) -> np.ndarray:
    """Return the weighted sums ``[N, D]``."""
    (tokens, chosen), columns = positions.shape, y.shape[1]
    y, out = aligned(y), aligned(np.full((tokens, columns), np.nan, BF16))
    added = None if added is None else aligned(added)
    threads = _CONSTANTS["row_threads"]
    kernels_of(source_of("combine_experts")).launch(
        "combine_experts",
        [
            *(ctypes.c_void_p(array.ctypes.data) for array in (y, positions, weights)),
            ctypes.c_void_p(None if added is None else added.ctypes.data),
            ctypes.c_void_p(out.ctypes.data),
            *(ctypes.c_int32(columns), ctypes.c_int32(chosen)),
        ],
        blocks=(tokens, -(-columns // (8 * threads)), 1),
        threads=threads,
        seed=0,
    )
    return out
