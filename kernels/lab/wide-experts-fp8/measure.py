"""Compare the lab's GEMMs of experts in block FP8 with the present ones on a Hopper: results, then times.

The present kernels must be compiled (``wisp-runtime kernels build``), the lab's as README.md says. Times are
of CUDA graphs that go through several layers, so that L2 never holds their experts, divided by the launches;
a median of rounds, taken in turn. Tokens choose experts at random; the floor is that of ``bench_moe.py``.

    PYTHONPATH=runtime:tests/bench:tests/bench/kernels:tests python measure.py experts_fp8_block.cubin
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import cupy as cp
import numpy as np
from bench_linear import Graph, fill, in_turn
from bench_moe import LAYERS, SHAPES, Moe, Shape, floors, layers_of
from cuda.bindings import driver as cu
from wide_arguments import (
    BOX_TOKENS,
    PACKED,
    ROW_TILES,
    THREADS,
    WIDE_TOKENS,
    arguments_of,
    entry,
    shared_bytes,
)

from wisp_runtime.bench.record import shown_command
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device
from wisp_runtime.ops.cuda.device.driver import ok
from wisp_runtime.ops.cuda.device.gpu import Gpu, open_gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.gemm.token_maps import TokenMaps
from wisp_runtime.ops.cuda.moe.matrices import ExpertMatrices
from wisp_runtime.ops.cuda.moe.plan import Tile, mma_tile
from wisp_runtime.ops.cuda.moe.sorting import SortedPairs
from wisp_runtime.ops.protocol.moe import ExpertWeights

RAGGED = (0, 1, 63, 64, 65, 129, 193, 300, 700)
"""Tokens of each expert where results are compared."""

SIZES = ((2048, 512), (2048, 768), (384, 200))
"""D and F there."""

NAMES, TOKENS = ("qwen3.6-35b-a3b", "qwen3-30b-a3b"), (512, 2048, 7900)
SKEWS = (0.0, 0.7)
"""Deviations of the experts' logits: all alike, and some chosen several times as often."""

ROUNDS, REPEATS = 5, 20
WIDE = Tile(WIDE_TOKENS)


class Lab:
    """The lab's kernels."""

    def __init__(self, device: Gpu, cubin: Path) -> None:
        module = ok(cu.cuModuleLoadData(cubin.read_bytes()), f"loading {cubin}")
        self._kernels = {}
        for is_gated in (False, True):
            name = entry(is_gated=is_gated)
            function = ok(cu.cuModuleGetFunction(module, name.encode()), f"loading {name}")
            self._kernels[is_gated] = Kernel(name, function, device.stream, can_overlap=True)
        self._blocks, self._map, self._next = device.sm_count, TokenMaps(), cp.zeros(1, np.uint32)

    def __call__(self, x: Any, matrices: ExpertMatrices, ordered: SortedPairs, out: Any) -> None:
        """Multiply ``x`` ``[positions, in]`` bf16 by each position's matrix."""
        first, is_gated = matrices.first, matrices.first.permutation == "gate_up_interleaved"
        arguments = arguments_of(first.outputs, first.inputs, matrices.distance_bytes, is_gated=is_gated)
        arguments.weight, arguments.out = first.storage.data.ptr, out.data.ptr
        arguments.tiles, arguments.tile_count = ordered.tiles.data.ptr, ordered.tile_count.data.ptr
        arguments.next = self._next.data.ptr
        grid = min(self._blocks, -(-first.outputs // (64 * ROW_TILES)) * len(ordered.tiles))
        self._kernels[is_gated].launch(
            (grid,),
            THREADS,
            self._map(x, BOX_TOKENS),
            arguments,
            shared_bytes=shared_bytes(is_gated=is_gated),
        )


class Case:
    """Layers of experts, and tokens that have chosen theirs."""

    def __init__(self, device: Gpu, lab: Lab, layers: list[ExpertWeights], chosen: np.ndarray) -> None:
        self._lab, self.device, self.layers = lab, device, layers
        moe = Moe(device)
        self._experts, count = moe._experts, len(layers[0].gate_up)
        hidden, inner = layers[0].down[0].outputs, layers[0].down[0].inputs
        random, held = np.random.default_rng(len(chosen)), to_device(chosen.astype(np.int32))
        self.x = to_device(random.standard_normal((len(chosen), hidden), np.float32).astype(BF16))
        self._present = copied(moe._sorter(held, count, tile=mma_tile(chosen.size, count)))
        self._wide = copied(moe._sorter(held, count, tile=WIDE))
        pairs = chosen.size
        self.gathered, self.y = (cp.empty((pairs, hidden), BF16) for _ in range(2))
        self.inner = cp.empty((pairs, inner), BF16)

    def gather(self, _: ExpertWeights) -> None:
        """Put the tokens in the order of positions."""
        self.gathered = self._experts._wide.gather(self.x, self._wide.rows)

    def gate_up(self, layer: ExpertWeights) -> None:
        """Multiply by gate and up with the lab's kernel."""
        self._lab(self.gathered, self._experts.matrices(layer.gate_up), self._wide, self.inner)

    def down(self, layer: ExpertWeights) -> None:
        """Multiply by down with the lab's kernel."""
        self._lab(self.inner, self._experts.matrices(layer.down), self._wide, self.y)

    def multiply(self, layer: ExpertWeights) -> None:
        """Do all three."""
        self.gather(layer)
        self.gate_up(layer)
        self.down(layer)

    def every_layer(self, stage: Callable[[ExpertWeights], object]) -> Callable[[], None]:
        """Return what launches a stage for each layer."""

        def body() -> None:
            for layer in self.layers:
                stage(layer)

        return body

    def present_gate_up(self, layer: ExpertWeights) -> Any:
        """Do so with the present kernel."""
        return self._experts.multiply_in(self.x, layer, self._present)

    def present_down(self, layer: ExpertWeights) -> Any:
        """Do so with the present kernel."""
        return self._experts.multiply_out(self.inner, layer, self._present)


def copied(ordered: SortedPairs) -> SortedPairs:
    """Return lists that the next sorting leaves alone."""
    names = ("experts", "positions", "rows", "tiles", "tile_count")
    return SortedPairs(*(getattr(ordered, name).copy() for name in names), ordered.tile)


def set_scales(layers: list[ExpertWeights]) -> None:
    """Give blocks scales, some of them 0, and rows theirs, so that results are of size 1; E4M3 has no NaN."""
    for layer in layers:
        for held in (layer.gate_up, layer.down):
            first, random = held[0], np.random.default_rng(held[0].inputs)
            blocks, rows, end = PACKED.sections(first.outputs, first.inputs)
            scales = random.uniform(0.5, 2, (rows - blocks) // 4) / (150 * first.inputs**0.5)
            scales[random.random(scales.size) < 0.01] = 0
            tail = np.concatenate([scales, random.uniform(0.5, 2, (end - rows) // 4)]).astype(np.float32)
            on_gpu = to_device(tail.view(np.uint8))
            for matrix in held:
                codes = matrix.storage[:blocks]
                codes[...] = cp.where(codes & 0x7F == 0x7F, cp.uint8(0), codes)
                matrix.storage[blocks:] = on_gpu


def experts_of(arena: Any, shape: Shape) -> list[ExpertWeights]:
    """Return layers of random codes."""
    layers = layers_of(arena, shape, PACKED)
    set_scales(layers)
    return layers


def alike(name: str, ours: Any, present: Any) -> bool:
    """Report how two results differ; return whether both are roundings of the same sums."""
    a, b = (cp.asnumpy(each).astype(np.float32) for each in (ours, present))
    size = np.abs(b) + np.sqrt(np.mean(b * b, axis=1, keepdims=True))
    apart = np.abs(a - b) / size
    fits = bool(np.isfinite(a).all() and (apart <= 2**-7).all())
    equal = float((a == b).mean())
    click.echo(f"{name:34} {'ok' if fits else 'WRONG':6} equal {equal:.4f}  apart at most {apart.max():.2e}")
    return fits


def compare(device: Gpu, lab: Lab, arena: Any) -> bool:
    """Compare results of experts with few and many tokens, and of repeated launches."""
    fits = True
    for hidden, inner in SIZES:
        chosen = np.random.default_rng(0).permutation(np.repeat(np.arange(len(RAGGED)), RAGGED))[:, None]
        case = Case(device, lab, experts_of(arena, Shape(len(RAGGED), 1, hidden, inner)), chosen)
        layer, name = case.layers[0], f"D {hidden} F {inner}"
        case.multiply(layer)
        fits &= alike(f"{name} gate_up", case.inner, case.present_gate_up(layer))
        fits &= alike(f"{name} down", case.y, case.present_down(layer))
        first = [cp.asnumpy(array.view(np.uint16)) for array in (case.inner, case.y)]
        for _ in range(REPEATS):
            case.multiply(layer)
            again = [cp.asnumpy(array.view(np.uint16)) for array in (case.inner, case.y)]
            fits &= all(map(np.array_equal, first, again))
        click.echo(f"{name}: {REPEATS} repeated launches, {'all as they must be' if fits else 'WRONG'}")
    return fits


def choices(shape: Shape, tokens: int, skew: float) -> np.ndarray:
    """Return experts ``[N, K]``; the deviation of their logits is ``skew``."""
    random = np.random.default_rng(tokens)
    scores = random.gumbel(size=(tokens, shape.experts)) + skew * random.standard_normal(shape.experts)
    return (-scores).argpartition(shape.chosen, 1)[:, : shape.chosen]


def measure(case: Case, floor: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return microseconds of each stage, and its floor's."""
    case.gather(case.layers[0])
    case.gathered = case.gathered.copy()  # the present kernel's results come there
    case.gate_up(case.layers[0])
    stages = ("present_gate_up", "gate_up", "present_down", "down", "gather")
    graphs = {stage: Graph(case.device, case.every_layer(getattr(case, stage))) for stage in stages}
    times = in_turn(graphs, LAYERS, 500.0, ROUNDS)
    floors_us = {stage: floor.get(stage.removeprefix("present_"), 0.0) for stage in stages}
    return {stage: {"us": round(times[stage], 1), "floor_us": round(floors_us[stage], 1)} for stage in stages}


@click.command()
@click.argument("cubin", type=click.Path(path_type=Path))
@click.option("--record", type=click.Path(path_type=Path), help="JSON file of the times.")
def main(cubin: Path, record: Path | None) -> None:
    """Compare and measure the kernels of CUBIN."""
    device, rows = open_gpu(), []
    lab = Lab(device, cubin)
    largest = max(SHAPES[name].experts * SHAPES[name].hidden * SHAPES[name].inner * 3 for name in NAMES)
    arena = fill(np.uint32(1), cp.empty(LAYERS * largest // 2 * 9 // 8, np.uint16)).view(np.uint8)
    if not compare(device, lab, arena):
        raise SystemExit("results are wrong: not timed")
    for name in NAMES:
        layers = experts_of(arena, SHAPES[name])
        for tokens, skew in [(tokens, skew) for tokens in TOKENS for skew in SKEWS]:
            chosen = choices(SHAPES[name], tokens, skew)
            floor = floors(SHAPES[name], tokens, len(np.unique(chosen)), PACKED)
            for stage, found in measure(Case(device, lab, layers, chosen), floor).items():
                rows.append({"shape": name, "tokens": tokens, "skew": skew, "stage": stage} | found)
                what = f"{name:16} {tokens:5} skew {skew:3} {stage:16}"
                click.echo(f"{what} {found['us']:8.1f} us  floor {found['floor_us']:7.1f}")
    if record is not None:
        told = {"gpu": device.name, "command": shown_command(sys.argv), "rows": rows}
        record.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
