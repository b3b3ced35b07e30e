"""GEMMs with quantized weights on a GPU, beside those with bf16 weights: one table, one JSON record.

Times are those of :mod:`bench_linear`. The kernels must be compiled (``wisp-runtime kernels build``).
A benchmark, not a test: it asserts no time.

    PYTHONPATH=tests/bench python tests/bench/kernels/bench_quantized_linear.py /tmp/record.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import cupy as cp
import numpy as np
from bench_linear import SHAPES, Graph, fill, in_turn, matrices, ours, words

from wisp_plan.quantization.packed_format import PACKED_FORMATS, PackedFormat
from wisp_runtime.bench.record import shown_command
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.gpu import Gpu, open_gpu
from wisp_runtime.ops.cuda.gemm import quantized_tiling
from wisp_runtime.ops.cuda.gemm.linear import Linear
from wisp_runtime.ops.cuda.gemm.tiling import GemmPlan, GemmShape
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage

TOKENS = (1, 16, 64, 256, 2048, 8192)
MAX_LOGIT_ROWS = 512
ARENA_ELEMENTS = 1 << 30  # 2 GiB of weights: 17 times an H200's L2


def quantized(arena: Any, shape: str, packed: PackedFormat) -> list[QuantizedStorage]:
    """Split the arena into matrices of a shape; almost any bits are a quantized matrix."""
    rows, inputs = SHAPES[shape]
    permutation = "gate_up_interleaved" if shape == "gate_up" else "plain"
    size_bytes, octets = packed.sections(rows, inputs)[2], arena.view(np.uint8)
    count = min(64, octets.size // size_bytes)
    return [
        QuantizedStorage(octets[i * size_bytes : (i + 1) * size_bytes], rows, inputs, permutation, packed)
        for i in range(count)
    ]


def alternatives(packed: PackedFormat, work: GemmShape, sms: int, count: int) -> list[GemmPlan]:
    """Return the plans that come after the chosen one by their estimate."""
    ranked = sorted(
        set(quantized_tiling._candidates(packed, work, sms)),
        key=lambda p: quantized_tiling.estimate_us(packed, p),
    )
    return [plan for plan in ranked if plan != quantized_tiling.plan_quantized(packed, work, sms)][:count]


def measure(device: Gpu, arena: Any, shape: str, tokens: int, name: str, explore: int, rounds: int) -> dict:
    """Time one format; ``bf16`` takes the kernels that it is compared with."""
    rows, inputs = SHAPES[shape]
    x = arena[: tokens * inputs].reshape(tokens, inputs).copy().view(BF16)
    packed, plans, estimate_us = PACKED_FORMATS.get(name), {}, 0.0
    linears = {"ours": Linear(device)}
    weights: Any
    if packed is None:
        weights, size_bytes = matrices(arena, shape), rows * inputs * 2
    else:
        weights, size_bytes = quantized(arena, shape, packed), packed.sections(rows, inputs)[2]
        work = GemmShape(rows, inputs, tokens, packed.tile_columns)
        chosen = quantized_tiling.plan_quantized(packed, work, device.sm_count)
        estimate_us = quantized_tiling.estimate_us(packed, chosen)
        plans["ours"] = chosen
        for plan in alternatives(packed, work, device.sm_count, explore):
            plans[words(plan)] = plan
            linears[words(plan)] = Linear(device, quantized_planner=lambda *_, plan=plan: plan)
    graphs = {key: Graph(device, ours(linear, shape, x, weights)) for key, linear in linears.items()}
    guess_us = max(size_bytes / 4e6, 2 * rows * inputs * tokens / 7e8, estimate_us, 5)
    times = in_turn(graphs, len(weights), guess_us, rounds)
    us = times["ours"]
    others = {
        key: f"{value:.1f}, estimated {quantized_tiling.estimate_us(packed, plans[key]):.1f}"
        for key, value in times.items()
        if key != "ours"
    }
    return {
        "shape": shape,
        "tokens": tokens,
        "format": name,
        "us": round(us, 2),
        "gb_per_s": round(size_bytes / us / 1e3),
        "tflop_per_s": round(2 * rows * inputs * tokens / us / 1e6, 1),
        "plan": words(plans["ours"]) if plans else "",
        "estimate_us": round(estimate_us, 1),
        "others": others,
    }


def line(row: dict) -> str:
    return (
        f"{row['format']:13} {row['shape']:8} {row['tokens']:5} {row['us']:9.2f} us {row['gb_per_s']:6} GB/s"
        f" {row['tflop_per_s']:6} TFLOP/s  [{row['plan']}, estimated {row['estimate_us']}]"
        f" {row['others'] or ''}"
    )


@click.command()
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--tokens", type=int, multiple=True, default=TOKENS, show_default=True)
@click.option("--shape", "shapes", type=click.Choice(list(SHAPES)), multiple=True, default=list(SHAPES)[:4])
@click.option("--format", "formats", multiple=True, default=("bf16", *PACKED_FORMATS))
@click.option("--explore", default=0, help="Also time so many of the plans that were not chosen.")
@click.option("--rounds", default=3, show_default=True)
def main(
    record: Path,
    tokens: tuple[int, ...],
    shapes: tuple[str, ...],
    formats: tuple[str, ...],
    explore: int,
    rounds: int,
) -> None:
    """Measure every format at every shape and number of tokens, and write RECORD."""
    device = open_gpu()
    arena = fill(np.uint32(1), cp.empty(ARENA_ELEMENTS, np.uint16))
    rows = []
    for shape in shapes:
        for count in tokens:
            if shape == "head" and count > MAX_LOGIT_ROWS:
                continue
            for name in formats:
                rows.append(measure(device, arena, shape, count, name, explore, rounds))
                print(line(rows[-1]), flush=True)
                cp.get_default_memory_pool().free_all_blocks()
    told = {"gpu": device.name, "command": shown_command(sys.argv), "rows": rows}
    record.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
