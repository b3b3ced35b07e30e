"""Launch the kernels of a mixture of experts on the emulated GPU, from the router to the weighted sum."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
from emulated_gpu import EmulatedGpu, imported, to_gpu
from emulated_kernel import Emulated

from wisp_plan.memory.buffers.moe import MAX_SPLIT_TOKENS, logit_stride, max_tiles
from wisp_plan.quantization.packed_format import PackedFormat
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.portable_plan import GemmArguments, quantized_arguments
from wisp_runtime.ops.cuda.moe.arguments import ExpertArguments, SortArguments
from wisp_runtime.ops.cuda.moe.plan import Tile, experts_entry, experts_grid
from wisp_runtime.ops.protocol.moe import ExpertResults, Routing

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


@dataclass(frozen=True)
class Routed:
    """A router's results: experts and weights ``[N, K]``, logits ``[N, E]``, the gate's, and the order."""

    experts: np.ndarray
    weights: np.ndarray
    logits: np.ndarray
    gates: np.ndarray | None
    order: tuple[np.ndarray, np.ndarray, np.ndarray]
    counts: np.ndarray


@cache
def _wrappers() -> list[ModuleType]:
    with imported(
        *(f"moe.{name}" for name in ("router_weights", "token_router", "router", "sorting"))
    ) as found:
        return found


def route(
    x: np.ndarray,
    weight: np.ndarray,
    spec: RouterSpec,
    bias: np.ndarray | None = None,
    correction: np.ndarray | None = None,
    *,
    gate: np.ndarray | None = None,
    seed: int = 0,
    is_few: bool | None = None,
    has_shared: bool = False,
    gpu: EmulatedGpu | None = None,
) -> Routed:
    """Route and sort, by one kernel up to 64 tokens, or as ``is_few`` says."""
    weights, few, many, sorting = _wrappers()
    tokens, gpu = len(x), gpu or EmulatedGpu(seed)
    held = (None if array is None else to_gpu(array) for array in (weight, bias, correction, gate))
    router, tile = weights.RouterWeights(*held), Tile(8)
    counts = to_gpu(np.array([np.arange(spec.experts)] * 2))
    gpu.clear("moe.logits")
    if tokens <= MAX_SPLIT_TOKENS if is_few is None else is_few:
        routing, ordered = few.TokenRouter(gpu)(to_gpu(x), router, spec, counts, tile, has_shared=has_shared)
    else:
        routing = many.Router(gpu)(to_gpu(x), router, spec)
        ordered = sorting.PairSorter(gpu)(routing.experts, spec.experts, counts, tile)
    stride = logit_stride(spec.experts, has_gate=gate is not None)
    summed = np.zeros((tokens, spec.experts), np.float32)
    for part in gpu.buffer("moe.logits").view(np.float32).reshape(-1, tokens, stride):
        summed += part[:, : spec.experts]
    number = int(ordered.tile_count.host[0])
    return Routed(
        *(routing.experts.host.copy(), routing.weights.host.copy(), summed),
        None if gate is None else routing.shared_logits.host.copy(),
        (ordered.positions.host.copy(), ordered.rows.host.copy(), ordered.tiles.host[:number].copy()),
        counts.host - np.arange(spec.experts),
    )


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
    y: np.ndarray,
    positions: np.ndarray,
    weights: np.ndarray,
    added: np.ndarray | None,
    gates: np.ndarray | None = None,
    *,
    norm: tuple[np.ndarray, np.ndarray, np.ndarray | None, bool] | None = None,
) -> np.ndarray:
    """Return the weighted sums ``[N, D]``; with ``norm`` add them into its residual, and norm that.

    Args:
        norm: residual, weight, rows of the residual, and whether the weight is zero-centred.
    """
    with imported("moe.combination") as (module,):
        arrays = (None if array is None else to_gpu(array) for array in (y, positions, weights, added, gates))
        y, positions, weights, added, gates = arrays
        results = ExpertResults(y, positions, Routing(positions, weights, gates), added)
        combination = module.Combination(EmulatedGpu())
        if norm is None:
            return combination(results).host
        residual, weight, rows, is_zero_centred = norm
        held = to_gpu(residual)
        more = {"rows": None if rows is None else to_gpu(rows), "is_zero_centred": is_zero_centred}
        normed = combination.add_rmsnorm(results, held, to_gpu(weight), eps=1e-6, out_name="normed", **more)
        residual[...] = held.host
        return normed.host
