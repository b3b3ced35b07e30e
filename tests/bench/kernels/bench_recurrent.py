"""Gated DeltaNet alone: microseconds a layer of each kernel, beside the time that its bytes or its sums need.

Launches cycle through several layers, so that states are not in the L2 already; all launches of a round are
one CUDA graph, its edges programmatic as in a step.

Measured (H200, qwen3.6-35b-a3b): a decode step's launch, gates' GEMM included, takes 4.3, 11.3, 43.4 and
86.4 us with 1, 8, 32 and 64 sequences; at 32, 71 % of the 4.5 TB/s of the floors. A prompt of 8192 takes
3.9 us a chunk, 4 x 2048 2.9. Counted, not profiled: one prompt's scan has 256 warps for 528 tensor cores,
each 504 products of 16 x 8 x 16 a chunk, chunk after chunk; so latency is the likely limit.

    PYTHONPATH=tests/bench python tests/bench/kernels/bench_recurrent.py [--rounds 20] [--record PATH]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attention_layers as layers
import click
import cupy as cp
import numpy as np

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.bench.record import shown_command
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device
from wisp_runtime.ops.cuda.device.gpu import Gpu, open_gpu
from wisp_runtime.ops.cuda.recurrent.conv import CausalConv
from wisp_runtime.ops.cuda.recurrent.delta_decode import DecodeInputs, DeltaDecode, GateRows
from wisp_runtime.ops.cuda.recurrent.delta_prefill import DeltaInputs, DeltaPrefill
from wisp_runtime.ops.cuda.recurrent.gated_norm import GatedNorm
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix, elements
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights

SHAPES = {
    "qwen3.6-35b-a3b": (DeltaNetSpec(key_heads=16, value_heads=32, key_size=128, value_size=128), 2048),
    "qwen3.8-27b": (DeltaNetSpec(key_heads=16, value_heads=48, key_size=128, value_size=128), 5120),
}
"""Layers, and the inputs of their projections."""
DECODE_STEPS = ("step", "given_gates")
BYTES_A_US, FLOPS_A_US = 4.5e6, 790e6
LAUNCHES = 24  # minimum of a graph
DECODES = (1, 2, 8, 32, 64)
PROMPTS = {"512": [512], "7900": [7900], "4 x 2048": [2048] * 4}


class Layers:
    """Layers of a step: states of each, projections that all share.

    Args:
        lengths: tokens of each sequence.
        count: layers with states of their own.
    """

    def __init__(self, device: Gpu, spec: DeltaNetSpec, hidden: int, lengths: list[int], count: int) -> None:
        random, tokens = np.random.default_rng(len(lengths)), sum(lengths)
        self.device, self.spec, self.count, sequences = device, spec, count, len(lengths)
        self.projected = layers.normal(random, (tokens, spec.conv_size + spec.value_heads * spec.value_size))
        self.gates = layers.normal(random, (tokens, 2 * spec.value_heads))
        weight = layers.normal(random, (elements(2 * spec.value_heads, hidden),))
        self.rows = GateRows(
            layers.normal(random, (tokens, hidden)), PackedMatrix(weight, 2 * spec.value_heads, hidden)
        )
        shapes = spec.cache().shapes
        self.states = cp.zeros((sequences, count, *shapes[0]), np.float32)
        self.inputs = cp.zeros((sequences, count, *shapes[1]), np.uint16).view(BF16)
        self.weights = DeltaNetWeights(
            conv=layers.normal(random, (spec.conv_size, spec.kernel)),
            decay=to_device(np.zeros(spec.value_heads, np.float32)),
            step_bias=to_device(np.full(spec.value_heads, -4, np.float32)),
            norm=to_device(np.ones(spec.value_size, np.float32)),
            eps=1e-6,
        )
        self.batch = _batch(lengths)
        self.out = cp.empty((tokens, spec.value_heads * spec.value_size), BF16)
        self.conv, self.prefill, self.norm = CausalConv(device), DeltaPrefill(device), GatedNorm(device)
        self.decode = DeltaDecode(device)
        self.is_prefill = max(lengths) > 1
        self.z = self.projected[:, spec.conv_size :]
        self.convolve(0)

    def convolve(self, layer: int) -> None:
        given = self.projected, self.weights.conv, None, self.batch, self.inputs[:, layer]
        self.qkv = self.conv(*given, has_prefills=self.is_prefill, out_name="bench.conv")

    def recur(self, layer: int) -> None:
        given = DeltaInputs(self.qkv, self.gates, self.weights, self.spec, self.batch)
        self.prefill(given, self.states[:, layer], self.out, min_tokens=2)

    def gate(self, _: int) -> None:
        self.norm(self.out, self.z, self.weights.norm, None, eps=1e-6, out_name="bench.gated")

    def prompt(self, layer: int) -> None:
        self.convolve(layer)
        self.recur(layer)
        self.gate(layer)

    def step(self, layer: int) -> None:
        self._decode(self.rows, layer)

    def given_gates(self, layer: int) -> None:
        self._decode(self.gates, layer)

    def _decode(self, gates: Array | GateRows, layer: int) -> None:
        given = DecodeInputs(self.projected, gates, self.weights, self.spec, self.batch)
        self.decode(given, self.states[:, layer], self.inputs[:, layer], self.out, has_norm=True)


def _batch(lengths: list[int]) -> Batch:
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    positions = np.concatenate([np.arange(64, 64 + length) for length in lengths]).astype(np.int32)
    unused = np.zeros(0, np.int32)
    return Batch(
        **dict.fromkeys(("tokens", "slots", "block_tables", "logit_rows", "context_lengths"), unused),
        positions=to_device(positions),
        query_starts=to_device(starts),
        query_starts_host=tuple(starts.tolist()),
        context_lengths_host=tuple(length + 64 for length in lengths),
        state_slots=to_device(np.arange(len(lengths), dtype=np.int32)),
    )


def floors(spec: DeltaNetSpec, hidden: int, lengths: list[int]) -> dict[str, float]:
    """Return the microseconds of each kernel's bytes, and of the recurrence's sums where they take longer."""
    tokens, values = sum(lengths), spec.value_heads * spec.value_size
    state_bytes = 8 * len(lengths) * values * spec.key_size
    conv = (4 * tokens * spec.conv_size + 2 * 6 * len(lengths) * spec.conv_size) / BYTES_A_US
    bytes_us = (state_bytes + 2 * tokens * (spec.conv_size + values)) / BYTES_A_US
    if max(lengths) == 1:
        weights = (4 * spec.value_heads * hidden + 8 * spec.conv_size) / BYTES_A_US
        moved = 12 * len(lengths) * spec.conv_size / BYTES_A_US
        return dict.fromkeys(DECODE_STEPS, bytes_us + weights + moved)
    # K S, Q S and K^T V' of a token, T X and scores V' of half of its chunk; bf16, no operand split.
    flops = 2 * tokens * values * (3 * spec.key_size + 64)
    bounds = {
        "convolve": conv,
        "recur": max(bytes_us, flops / FLOPS_A_US),
        "gate": 6 * tokens * values / BYTES_A_US,
    }
    return bounds | {"prompt": sum(bounds.values())}


def measure(device: Gpu, name: str, lengths: list[int], label: str, rounds: int) -> list[dict[str, object]]:
    """Measure each kernel of a prompt, and all of them one after the other; or a decode step's variants."""
    (spec, hidden), rows = SHAPES[name], []
    state_bytes = 4 * len(lengths) * spec.value_heads * spec.key_size * spec.value_size
    count = max(2, min(30, -(-2 * layers.L2_BYTES // state_bytes)))
    case = Layers(device, spec, hidden, lengths, count)
    launches = -(-LAUNCHES // count) * count
    for kind, bound in floors(spec, hidden, lengths).items():
        run = layers.graph_of(device, partial(_launch, getattr(case, kind), launches, count))
        times = layers.time_us(device, run, launches, rounds)
        row = {
            "metric": f"Gated DeltaNet, {kind}, us a layer",
            "model": name,
            "step": label,
            "value": round(statistics.median(times), 2),
            "minimum": round(min(times), 2),
            "floor": round(bound, 2),
        }
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def _launch(step: Callable[[int], None], launches: int, count: int) -> None:
    for number in range(launches):
        step(number % count)


@click.command()
@click.option("--rounds", default=20, show_default=True, help="Runs of all layers a case.")
@click.option("--model", "names", multiple=True, type=click.Choice([*SHAPES]), default=[*SHAPES])
@click.option("--record", type=click.Path(path_type=Path), help="Write the rows there, as JSON.")
def main(rounds: int, names: tuple[str, ...], record: Path | None) -> None:
    """Measure Gated DeltaNet alone."""
    device, rows = open_gpu(0), []
    for name in names:
        for batch in DECODES:
            rows += measure(device, name, [1] * batch, f"{batch} tokens of as many sequences", rounds)
        for label, lengths in PROMPTS.items():
            rows += measure(device, name, lengths, f"prompts of {label}", rounds)
    command = shown_command(["python", "tests/bench/kernels/bench_recurrent.py", *sys.argv[1:]])
    content = {"name": "recurrent", "gpu": device.name, "command": command, "rows": rows}
    print(json.dumps(content))
    if record is not None:
        record.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
