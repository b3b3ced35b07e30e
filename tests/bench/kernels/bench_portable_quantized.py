"""Portable GEMMs with quantized weights, beside the portable bf16 ones: one table, one JSON record.

What Ampere and Ada run; on a Hopper these times are for comparison only, since its own kernels are others.
Times are taken as in :mod:`bench_linear`. GB/s counts the packed matrix, scales and padding included.

    PYTHONPATH=tests/bench python tests/bench/kernels/bench_portable_quantized.py /tmp/record.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import cupy as cp
import numpy as np
from bench_linear import SHAPES, Graph, fill, in_turn, ours

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu/gemm"))
from portable_kernels import with_portable_gemms

from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_runtime.bench.record import shown_command
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.gpu import Gpu, open_gpu
from wisp_runtime.ops.cuda.gemm.portable_linear import PortableLinear
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage

TOKENS = (1, 8, 16, 32, 64, 256, 2048)
FORMATS = ("bf16", "fp8", "fp8_block", "int8", "int4", "int4_zero", "int4_g32", "mxfp4", "nvfp4")
ARENA_BYTES = 1 << 30  # 17 times an H200's L2


def matrices(arena: Any, shape: str, weight_format: str) -> list[PackedMatrix | QuantizedStorage]:
    """Split the arena into matrices of a shape; any bits are a packed matrix."""
    rows, inputs = SHAPES[shape]
    permutation = "gate_up_interleaved" if shape == "gate_up" else "plain"
    size = rows * inputs * 2
    if weight_format != "bf16":
        size = PACKED_FORMATS[weight_format].sections(rows, inputs)[2]
    parts = [arena[i * size : (i + 1) * size] for i in range(min(64, arena.size // size))]
    if weight_format == "bf16":
        return [PackedMatrix(part.view(BF16), rows, inputs, permutation) for part in parts]
    packed = PACKED_FORMATS[weight_format]
    return [QuantizedStorage(part, rows, inputs, permutation, packed) for part in parts]


def measure(
    device: Gpu, arena: Any, shape: str, tokens: int, formats: tuple[str, ...], rounds: int
) -> list[dict]:
    """Time every format in turn."""
    rows, inputs = SHAPES[shape]
    x = arena[: tokens * inputs * 2].copy().view(BF16).reshape(tokens, inputs)
    linear, graphs, sizes = PortableLinear(device), {}, {}
    launches = 4
    for name in formats:
        weights = matrices(arena, shape, name)
        chosen = [weights[i % len(weights)] for i in range(max(launches, len(weights)))]
        sizes[name] = weights[0].storage.nbytes, len(chosen)
        graphs[name] = Graph(device, ours(linear, shape, x, chosen))
    measured = []
    for name, graph in graphs.items():
        size, launches = sizes[name]
        guess_us = max(size / 3e6, 2 * rows * inputs * tokens / 3e8)
        us = in_turn({name: graph}, launches, guess_us, rounds)[name]
        measured.append(
            {
                "shape": shape,
                "tokens": tokens,
                "format": name,
                "us": round(us, 2),
                "gb_per_s": round(size / us / 1e3),
                "tflop_per_s": round(2 * rows * inputs * tokens / us / 1e6, 1),
            }
        )
    return measured


@click.command()
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--tokens", type=int, multiple=True, default=TOKENS, show_default=True)
@click.option(
    "--shape", "shapes", type=click.Choice(list(SHAPES)), multiple=True, default=("qkv", "gate_up", "down")
)
@click.option(
    "--format", "formats", type=click.Choice(["bf16", *PACKED_FORMATS]), multiple=True, default=FORMATS
)
@click.option("--rounds", default=3, show_default=True)
def main(
    record: Path, tokens: tuple[int, ...], shapes: tuple[str, ...], formats: tuple[str, ...], rounds: int
) -> None:
    """Measure every format at every shape and number of tokens, and write RECORD."""
    device = with_portable_gemms(open_gpu())
    arena = fill(np.uint32(1), cp.empty(ARENA_BYTES // 2, np.uint16)).view(np.uint8)
    rows = []
    for shape in shapes:
        for count in tokens:
            for row in measure(device, arena, shape, count, formats, rounds):
                print(
                    f"{row['shape']:8} {row['tokens']:5} {row['format']:10} {row['us']:9.2f} us"
                    f" {row['gb_per_s']:6} GB/s {row['tflop_per_s']:6} TFLOP/s",
                    flush=True,
                )
                rows.append(row)
    note = "the portable kernels, which Ampere and Ada run; on a Hopper for comparison only"
    told = {"gpu": device.name, "note": note, "command": shown_command(sys.argv), "rows": rows}
    record.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
