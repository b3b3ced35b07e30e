"""Mixtures of experts on a GPU, kernel by kernel, beside their floors: one table, one JSON record.

Times are of CUDA graphs that go through several layers, so that L2 never holds their experts, divided by
the launches; a median of rounds. Tokens choose experts at random. The floor of a GEMM is the longer of
reading each chosen expert once at 4.5 TB/s and multiplying at 790 TFLOP/s (an H200). The kernels must be
compiled (``wisp-runtime kernels build``). A benchmark, not a test: it asserts no time.

    PYTHONPATH=tests/bench python tests/bench/kernels/bench_moe.py /tmp/record.json --format bf16
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import cupy as cp
import numpy as np
from bench_linear import Graph, fill

from wisp_plan.quantization.packed_format import EXPERT_FORMATS, PackedFormat
from wisp_plan.spec.ffn import Activation
from wisp_plan.spec.moe import RouterSpec
from wisp_plan.weights.layout import packed_elements
from wisp_runtime.bench.record import shown_command
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device
from wisp_runtime.ops.cuda.device.gpu import Gpu, open_gpu
from wisp_runtime.ops.cuda.gemm.linear import Matrix
from wisp_runtime.ops.cuda.moe.ops import CudaMoe
from wisp_runtime.ops.cuda.moe.plan import Tile
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage
from wisp_runtime.ops.protocol.moe import ExpertResults, ExpertWeights, Routing

TOKENS = (1, 8, 32, 512, 7900)
LAYERS = 4
BYTES_A_NS, FLOP_A_NS = 4500.0, 790e3
ROUND_US, ROUNDS = 8e3, 5


@dataclass(frozen=True)
class Shape:
    """Sizes of a mixture."""

    experts: int
    chosen: int
    hidden: int
    inner: int
    activation: Activation = "silu"


SHAPES = {
    "qwen3-30b-a3b": Shape(128, 8, 2048, 768),
    "qwen3.6-35b-a3b": Shape(256, 8, 2048, 512),
    "qwen3-next-80b-a3b": Shape(512, 10, 2048, 512),
    "gpt-oss-20b": Shape(32, 4, 2880, 2880, "clamped_swiglu"),
    "gpt-oss-120b": Shape(128, 4, 2880, 2880, "clamped_swiglu"),
}


class Moe(CudaMoe):
    """The ops of mixtures alone."""

    def __init__(self, device: Gpu) -> None:
        self._device = device


def matrices(
    arena: Any,
    first: int,
    count: int,
    outputs: int,
    inputs: int,
    permutation: str,
    packed: PackedFormat | None,
) -> tuple[tuple[Matrix, ...], int]:
    """See bytes of the arena as experts' matrices; return them and where they end: any bits will do."""
    size = packed_elements(outputs, inputs) * 2 if packed is None else packed.sections(outputs, inputs)[2]
    parts = [arena[first + i * size : first + (i + 1) * size] for i in range(count)]
    sizes = outputs, inputs, permutation
    if packed is None:
        return tuple(PackedMatrix(part.view(BF16), *sizes) for part in parts), first + count * size
    return tuple(QuantizedStorage(part, *sizes, packed) for part in parts), first + count * size


def layers_of(arena: Any, shape: Shape, packed: PackedFormat | None) -> list[ExpertWeights]:
    """Return several layers' experts."""
    layers, end = [], 0
    for _ in range(LAYERS):
        sizes = shape.experts, 2 * shape.inner, shape.hidden
        into, end = matrices(arena, end, *sizes, "gate_up_interleaved", packed)
        down, end = matrices(arena, end, shape.experts, shape.hidden, shape.inner, "plain", packed)
        layers.append(ExpertWeights(into, down, activation=shape.activation))
    return layers


def stages(
    moe: Moe, shape: Shape, layers: list[ExpertWeights], tokens: int, tile: Tile | None
) -> dict[str, Callable[[], None]]:
    """Return what each stage launches, a time for each layer; ``all`` with the tile that is chosen for it."""
    random, spec = np.random.default_rng(tokens), RouterSpec(shape.experts, shape.chosen)
    x = to_device(random.standard_normal((tokens, shape.hidden), np.float32).astype(BF16))
    rows = random.standard_normal((shape.experts + 1, shape.hidden)) / 50
    held = to_device(rows.astype(BF16))
    router, gate = held[:-1], held[-1:]
    routed = moe.route(x, router, spec)
    routing = Routing(routed.experts.copy(), routed.weights.copy())
    tile = tile or moe._experts.tile(routing.experts.size, shape.experts, layers[0])
    ordered = moe._sorter(routing.experts, shape.experts, tile=tile)
    pairs, experts = tokens * shape.chosen, moe._experts

    def into(layer: ExpertWeights) -> Any:
        return experts.multiply_in(x, layer, ordered)

    inner = into(layers[0]).copy()
    y = experts.multiply_out(inner, layers[0], ordered).copy()
    assert len(y) == pairs
    results = ExpertResults(y, ordered.positions.copy(), routing, x)
    weight, residual = to_device(np.zeros(shape.hidden, BF16)), cp.zeros((tokens, shape.hidden), np.float32)
    norm = {"eps": 1e-6, "out_name": "normed"}
    each: dict[str, Callable[[ExpertWeights], object]] = {
        "route": lambda _: moe.route(x, router, spec),
        "gated": lambda _: moe.route(x, router, spec, shared_gate=gate),
        "sort": lambda _: moe._sorter(routing.experts, shape.experts, tile=tile),
        **({"gather": lambda _: experts._wide.gather(x, ordered.rows)} if tile.is_wide else {}),
        "gate_up": into,
        "down": lambda layer: experts.multiply_out(inner, layer, ordered),
        "both": lambda layer: experts.multiply(x, layer, ordered),
        "combine": lambda _: moe._combination(results),
        "normed": lambda _: moe._combination.add_rmsnorm(results, residual, weight, **norm),
        "all": lambda layer: moe.mixture(x, moe.route(x, router, spec), layer, x),
    }

    def all_layers(stage: Callable[[ExpertWeights], object]) -> None:
        for layer in layers:
            stage(layer)

    return {name: lambda stage=stage: all_layers(stage) for name, stage in each.items()}


def floors(shape: Shape, tokens: int, hit: int, packed: PackedFormat | None) -> dict[str, float]:
    """Return microseconds that each GEMM takes at least."""
    found = {}
    for name, outputs, inputs in (
        ("gate_up", 2 * shape.inner, shape.hidden),
        ("down", shape.hidden, shape.inner),
    ):
        size = outputs * inputs * 2 if packed is None else packed.sections(outputs, inputs)[2]
        flop = 2 * tokens * shape.chosen * outputs * inputs
        found[name] = max(hit * size / BYTES_A_NS, flop / FLOP_A_NS) / 1e3
    return found | dict.fromkeys(("both", "all"), sum(found.values()))


def measure(
    device: Gpu,
    arena: Any,
    name: str,
    weight_format: str,
    tokens: int,
    tile: Tile | None,
    chosen: tuple[str, ...] = (),
) -> list[dict[str, object]]:
    """Time every stage at a number of tokens."""
    shape, packed, moe = SHAPES[name], EXPERT_FORMATS.get(weight_format), Moe(device)
    bodies = stages(moe, shape, layers_of(arena, shape, packed), tokens, tile)
    hit = len(np.unique(cp.asnumpy(device.workspace.array("moe.experts", (tokens, shape.chosen), np.int32))))
    floor = floors(shape, tokens, hit, packed)
    rows = []
    for stage in chosen or bodies:
        body = bodies[stage]
        graph = Graph(device, body)
        once = graph.milliseconds(1) * 1e3
        replays = max(1, round(ROUND_US / max(once, 1.0)))
        us = statistics.median(graph.milliseconds(replays) * 1e3 / LAYERS for _ in range(ROUNDS))
        rows.append(
            {
                "shape": name,
                "format": weight_format,
                "tokens": tokens,
                "stage": stage,
                "us": round(us, 2),
                "floor_us": round(floor.get(stage, 0.0), 2),
                "experts": hit,
            }
        )
    return rows


def line(row: dict[str, object]) -> str:
    """Return a row of the table."""
    return (
        f"{row['shape']:16} {row['format']:10} {row['tokens']:5} {row['stage']:8} {row['us']:10} us"
        f"  floor {row['floor_us']:9}  experts {row['experts']}"
    )


@click.command()
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--tokens", type=int, multiple=True, default=TOKENS, show_default=True)
@click.option("--shape", "shapes", type=click.Choice(list(SHAPES)), multiple=True, default=list(SHAPES))
@click.option("--tile", type=int, help="Tokens of a tile; the chosen one if none is named.")
@click.option("--wide", is_flag=True, help="The tile is of Hopper's kernel.")
@click.option("--format", "formats", multiple=True, default=("bf16",), show_default=True)
@click.option("--stage", "chosen", multiple=True, help="Stages; all if none is named.")
def main(
    record: Path,
    tokens: tuple[int, ...],
    shapes: tuple[str, ...],
    formats: tuple[str, ...],
    chosen: tuple[str, ...],
    tile: int | None,
    *,
    wide: bool,
) -> None:
    """Measure every shape, format and number of tokens, and write RECORD."""
    device = open_gpu()
    largest = max(s.experts * s.hidden * s.inner * 3 * 2 for s in map(SHAPES.__getitem__, shapes))
    arena = fill(np.uint32(1), cp.empty(LAYERS * largest // 2 * 9 // 8, np.uint16)).view(np.uint8)
    rows: list[dict[str, object]] = []
    named = None if tile is None else Tile(tile, wide)
    for name in shapes:
        for weight_format in formats:
            for count in tokens:
                found = measure(device, arena, name, weight_format, count, named, chosen)
                print("\n".join(map(line, found)), flush=True)
                rows += found
    told = {"gpu": device.name, "command": shown_command(sys.argv), "rows": rows}
    record.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
