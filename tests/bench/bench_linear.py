"""Products with packed weights on a GPU, beside cuBLAS where torch is installed: one table, one JSON record.

Each time is of a CUDA graph that goes through many different matrices, so that L2 never holds them, divided
by its launches; a median of rounds taken in turn, each after a pause, since kernels timed back to back are
slowed by the card's power limit in the order in which they are run. The kernels must be compiled
(``wisp-runtime kernels build``). A benchmark, not a test: it asserts no time.

    python tests/bench/bench_linear.py /tmp/linear.json [--tokens 1 --tokens 300] [--explore 6] [--portable]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import cupy as cp
import numpy as np

from wisp_runtime.bench.record import shown_command
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.gpu import Gpu, open_gpu
from wisp_runtime.ops.cuda.gemm import planner
from wisp_runtime.ops.cuda.gemm.cost_model import estimate_us
from wisp_runtime.ops.cuda.gemm.linear import Linear
from wisp_runtime.ops.cuda.gemm.portable_linear import PortableLinear
from wisp_runtime.ops.cuda.gemm.tiling import GemmPlan, GemmShape
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix, pack_rows

SHAPES = {  # Llama-3-8B
    "qkv": (6144, 4096),
    "output": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
TOKENS = (1, 8, 32, 64, 128, 256, 300, 512, 2048, 8192)
MAX_LOGIT_ROWS = 512
ARENA_ELEMENTS = 1 << 30  # 2 GiB of weights: 17 times an H200's L2, and more than one matrix of each shape
ROUND_S = 6e-3
PAUSE_S = 0.05

fill = cp.ElementwiseKernel(
    "uint32 seed",
    "uint16 y",
    """
    unsigned int z = ((unsigned int)i + seed) * 2654435769u;
    z ^= z >> 16; z *= 0x85ebca6bu; z ^= z >> 13; z *= 0xc2b2ae35u; z ^= z >> 16;
    y = __float_as_uint(((float)(z & 0xffff) + (float)(z >> 16)) / 65536.0f - 1.0f) >> 16;
    """,
    "bench_bits",
)


class Graph:
    """Everything that ``body`` launches on the device's stream, captured."""

    def __init__(self, device: Gpu, body: Callable[[], None]) -> None:
        body()  # allocates, and makes the launches that later ones repeat
        device.synchronize()
        self.stream = device.stream
        self.stream.begin_capture()
        body()
        self.graph = self.stream.end_capture()

    def milliseconds(self, replays: int) -> float:
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        self.graph.launch(self.stream)
        begin.record(self.stream)
        for _ in range(replays):
            self.graph.launch(self.stream)
        end.record(self.stream)
        end.synchronize()
        return cp.cuda.get_elapsed_time(begin, end) / replays


def in_turn(graphs: dict[str, Graph], launches: int, guess_us: float, rounds: int) -> dict[str, float]:
    """Return microseconds a launch, by name."""
    replays = max(1, round(ROUND_S / (guess_us * launches * 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in graphs}
    names = list(graphs)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(PAUSE_S)
            found[name].append(graphs[name].milliseconds(replays) / launches * 1e3)
    return {name: statistics.median(times) for name, times in found.items()}


def matrices(arena: Any, shape: str) -> list[PackedMatrix]:
    """Split the arena into matrices of a shape; any bits are a packed matrix."""
    rows, inputs = SHAPES[shape]
    permutation = "gate_up_interleaved" if shape == "gate_up" else "plain"
    count = min(64, arena.size // (rows * inputs))
    parts = (arena[i * rows * inputs : (i + 1) * rows * inputs] for i in range(count))
    return [PackedMatrix(part.view(BF16), rows, inputs, permutation) for part in parts]


def ours(linear: Linear, shape: str, x: Any, weights: list[PackedMatrix]) -> Callable[[], None]:
    multiply = {"gate_up": linear.swiglu, "head": linear.logits}.get(shape, linear)

    def body() -> None:
        for weight in weights:
            multiply(x, weight, out_name="bench.y")

    return body


def cublas(device: Gpu, x: Any, weights: list[PackedMatrix]) -> Graph | None:
    """Return torch.matmul over as many plain matrices; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    stream = torch.cuda.ExternalStream(device.stream.ptr)

    def tensor(array: Any, *shape: int) -> Any:
        return torch.as_tensor(array.view(np.int16), device="cuda").view(torch.bfloat16).reshape(shape)

    plain = [tensor(weight.storage, weight.outputs, weight.inputs) for weight in weights]
    tokens = tensor(x, *x.shape)
    with torch.cuda.stream(stream):
        out = torch.matmul(tokens, plain[0].T)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for weight in plain:
                torch.matmul(tokens, weight.T, out=out)
    found = Graph.__new__(Graph)
    found.stream = device.stream

    class Replayed:
        def launch(self, _stream: Any) -> None:
            with torch.cuda.stream(stream):
                graph.replay()

    found.graph = Replayed()
    return found


def words(plan: GemmPlan) -> str:
    ranges = f", {plan.ranges} x {plan.streams} ranges" if plan.ranges else ""
    pairs = f", {plan.pairs} pairs" if plan.pairs else ""
    rows = "192 rows " if plan.row_tiles == 3 else ""
    full = f"{plan.full_tiles}/{plan.tiles} full"
    return f"{rows}n{plan.block_n}, {full}{ranges}{pairs}, grid {plan.grid}"


def alternatives(work: GemmShape, sms: int, count: int) -> list[GemmPlan]:
    """Return the plans that come after the chosen one by their estimate."""
    ranked = sorted(set(planner._candidates(work, sms)), key=estimate_us)
    return [plan for plan in ranked if plan != planner.plan(work, sms)][:count]


def measure(
    device: Gpu,
    arena: Any,
    shape: str,
    tokens: int,
    explore: int,
    with_torch: bool,
    with_portable: bool,
    rounds: int,
) -> dict:
    rows, inputs = SHAPES[shape]
    weights = matrices(arena, shape)
    x = arena[: tokens * inputs].reshape(tokens, inputs).copy().view(BF16)
    work = GemmShape(rows, inputs, tokens)
    chosen = planner.plan(work, device.sm_count)
    linears = {"ours": Linear(device)}
    if tokens <= 64:
        linears["ours, half ring"] = Linear(device, shared_bytes=device.shared_bytes // 2)
    if with_portable:
        linears["portable"] = PortableLinear(device)
    for plan in alternatives(work, device.sm_count, explore):
        linears[words(plan)] = Linear(device, planner=lambda *_, plan=plan: plan)
    graphs = {name: Graph(device, ours(linear, shape, x, weights)) for name, linear in linears.items()}
    other = cublas(device, x, weights) if with_torch else None
    if other is not None:
        graphs["cublas"] = other
    times = in_turn(graphs, len(weights), estimate_us(chosen), rounds)
    us = times["ours"]
    return {
        "shape": shape,
        "tokens": tokens,
        "us": round(us, 2),
        "gb_per_s": round(rows * inputs * 2 / us / 1e3),
        "tflop_per_s": round(2 * rows * inputs * tokens / us / 1e6, 1),
        "plan": words(chosen),
        "estimate_us": round(estimate_us(chosen), 1),
        "others_us": {name: round(value, 2) for name, value in times.items() if name != "ours"},
    }


def line(row: dict) -> str:
    return (
        f"{row['shape']:8} {row['tokens']:5} {row['us']:9.2f} us {row['gb_per_s']:6} GB/s"
        f" {row['tflop_per_s']:6} TFLOP/s  {row['others_us']}"
        f"  [{row['plan']}, estimated {row['estimate_us']}]"
    )


def packing(device: Gpu, arena: Any) -> list[dict]:
    """Time packing a matrix of 28672 x 4096, from each source."""
    found = []
    rows, inputs = SHAPES["gate_up"]
    weight = PackedMatrix(arena[: rows * inputs].view(BF16), rows, inputs, "gate_up_interleaved")
    for dtype in (BF16, np.dtype(np.float16), np.dtype(np.float32)):
        size = rows * inputs * dtype.itemsize // 2
        source = arena[rows * inputs : rows * inputs + size].view(dtype).reshape(rows, inputs)
        graph = Graph(device, lambda source=source: pack_rows(device, source, weight, 0))
        us = in_turn({"pack": graph}, 1, 150, 3)["pack"]
        moved = source.nbytes + weight.storage.nbytes
        found.append({"pack": str(dtype), "us": round(us, 1), "gb_per_s": round(moved / us / 1e3)})
    return found


@click.command()
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--tokens", type=int, multiple=True, default=TOKENS, show_default=True)
@click.option("--shape", "shapes", type=click.Choice(list(SHAPES)), multiple=True, default=list(SHAPES))
@click.option("--explore", default=0, help="Also time so many of the plans that were not chosen.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--torch/--no-torch", "with_torch", default=True)
@click.option("--portable", "with_portable", is_flag=True, help="Also time what Ampere and Ada would run.")
def main(
    record: Path,
    tokens: tuple[int, ...],
    shapes: tuple[str, ...],
    explore: int,
    rounds: int,
    with_torch: bool,
    with_portable: bool,
) -> None:
    """Measure every shape at every number of tokens, and write RECORD."""
    device = open_gpu()
    arena = fill(np.uint32(1), cp.empty(ARENA_ELEMENTS, np.uint16))
    rows = packing(device, arena)
    print(*rows, sep="\n")
    for shape in shapes:
        for count in tokens:
            if shape == "head" and count > MAX_LOGIT_ROWS:
                continue
            beside = explore, with_torch, with_portable
            rows.append(measure(device, arena, shape, count, *beside, rounds))
            print(line(rows[-1]), flush=True)
            cp.get_default_memory_pool().free_all_blocks()
    told = {"gpu": device.name, "command": shown_command(sys.argv), "rows": rows}
    record.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
