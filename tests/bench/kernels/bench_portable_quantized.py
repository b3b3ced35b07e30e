"""Portable GEMMs with quantized weights, beside the portable bf16 ones and the GPU's own: one JSON record.

What Ampere and Ada run; on a Hopper the portable ones' times are for comparison, since its own kernels are
others. Times are microseconds, taken as in :mod:`bench_linear`.

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
from wisp_runtime.ops.cuda.gemm.linear import Linear
from wisp_runtime.ops.cuda.gemm.portable_linear import PortableLinear
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage

TOKENS = (1, 8, 16, 32, 64, 128, 256, 2048)
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
    linears: dict[str, Linear], device: Gpu, arena: Any, shape: str, tokens: int, name: str, rounds: int
) -> dict[str, float]:
    """Return the microseconds of one format by kernels, timed in turn."""
    rows, inputs = SHAPES[shape]
    x = arena[: tokens * inputs * 2].copy().view(BF16).reshape(tokens, inputs)
    weights = matrices(arena, shape, name)
    guess_us = max(weights[0].storage.nbytes / 3e6, 2 * rows * inputs * tokens / 3e8, 5)
    graphs = {kind: Graph(device, ours(linear, shape, x, weights)) for kind, linear in linears.items()}
    return in_turn(graphs, len(weights), guess_us, rounds)


@click.command()
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--tokens", type=int, multiple=True, default=TOKENS, show_default=True)
@click.option(
    "--shape", "shapes", type=click.Choice(list(SHAPES)), multiple=True, default=("output", "gate_up")
)
@click.option(
    "--format", "formats", type=click.Choice(["bf16", *PACKED_FORMATS]), multiple=True, default=FORMATS
)
@click.option("--rounds", default=3, show_default=True)
@click.option("--own/--no-own", "with_own", default=True, help="Time the GPU's own kernels, too.")
def main(
    record: Path,
    tokens: tuple[int, ...],
    shapes: tuple[str, ...],
    formats: tuple[str, ...],
    rounds: int,
    with_own: bool,
) -> None:
    """Measure every format at every shape and number of tokens, and write RECORD."""
    device = open_gpu()
    linears: dict[str, Linear] = {"portable": PortableLinear(with_portable_gemms(device))}
    if with_own:
        linears["own"] = Linear(device)
        linears["own"].reserve(max(tokens), max(inputs for _, inputs in SHAPES.values()))  # E4M3 activations
    arena = fill(np.uint32(1), cp.empty(ARENA_BYTES // 2, np.uint16)).view(np.uint8)
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        for count in tokens:
            times = {name: measure(linears, device, arena, shape, count, name, rounds) for name in formats}
            for kind in linears:
                row = {"metric": "gemm_us", "shape": shape, "tokens": count, "kernels": kind}
                rows.append(row | {name: round(us[kind], 1) for name, us in times.items()})
                print(*rows[-1].values(), flush=True)
    note = "Microseconds of a GEMM of a Llama-3-8B, with SwiGLU for gate_up, by the format of its weights"
    told = {"gpu": device.name, "note": note, "command": shown_command(sys.argv), "rows": rows}
    record.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
