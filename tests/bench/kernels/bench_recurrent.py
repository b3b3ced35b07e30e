"""Gated DeltaNet alone: microseconds a layer of each kernel, beside the time that its bytes or its sums need.

Launches cycle through several layers, so that states are not in the L2 already; all launches of a round are
one CUDA graph, its edges programmatic as in a step.

Measured (H200, qwen3.6-35b-a3b): 32 decodes move their states at 71 % of the 4.5 TB/s of the floors. A prompt
of 8192 takes 3.9 us a chunk, 4 x 2048 2.9. Counted, not profiled: one prompt's scan has 256 warps for 528
tensor cores, each 504 products of 16 x 8 x 16 a chunk, chunk after chunk; so latency is the likely limit.

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
from wisp_runtime.batch import Batch
from wisp_runtime.bench.record import shown_command
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device
from wisp_runtime.ops.cuda.device.gpu import Gpu, open_gpu
from wisp_runtime.ops.cuda.recurrent.conv import CausalConv
from wisp_runtime.ops.cuda.recurrent.delta_rule import DeltaInputs, DeltaRule
from wisp_runtime.ops.cuda.recurrent.gated_norm import GatedNorm
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights

SHAPES = {
    "qwen3.6-35b-a3b": DeltaNetSpec(key_heads=16, value_heads=32, key_size=128, value_size=128),
    "qwen3.6-27b": DeltaNetSpec(key_heads=16, value_heads=48, key_size=128, value_size=128),
}
BYTES_A_US, FLOPS_A_US = 4.5e6, 790e6
LAUNCHES = 24  # minimum of a graph
DECODES = (1, 2, 8, 32, 64)
PROMPTS = {"512": [512], "8192": [8192], "4 x 2048": [2048] * 4, "16 x 512": [512] * 16}


class Layers:
    """Layers of a step: states of each, projections that all share.

    Args:
        lengths: tokens of each sequence.
        count: layers with states of their own.
    """

    def __init__(self, device: Gpu, spec: DeltaNetSpec, lengths: list[int], count: int) -> None:
        random, tokens = np.random.default_rng(len(lengths)), sum(lengths)
        self.device, self.spec, self.count, sequences = device, spec, count, len(lengths)
        self.projected = layers.normal(random, (tokens, spec.conv_size + spec.value_heads * spec.value_size))
        self.gates = layers.normal(random, (tokens, 2 * spec.value_heads))
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
        self.conv, self.rule, self.norm = CausalConv(device), DeltaRule(device), GatedNorm(device)
        self.is_prefill = max(lengths) > 1
        self.qkv = cp.empty((tokens, spec.conv_size), BF16)
        self.qkv.data.memset_async(0, self.qkv.nbytes)
        self.z = self.projected[:, spec.conv_size :]
        self.convolve(0)

    def convolve(self, layer: int) -> None:
        given = self.projected, self.weights.conv, None, self.batch, self.inputs[:, layer]
        self.qkv = self.conv(*given, has_prefills=self.is_prefill, out_name="bench.conv")

    def recur(self, layer: int) -> None:
        given = DeltaInputs(self.qkv, self.gates, self.z, self.weights, self.spec, self.batch)
        if self.is_prefill:
            self.rule.prefill(given, self.states[:, layer], self.out, min_tokens=2)
        else:
            self.rule.decode(given, self.states[:, layer], self.out, has_norm=True)

    def gate(self, _: int) -> None:
        self.norm(self.out, self.z, self.weights.norm, None, eps=1e-6, out_name="bench.gated")

    def all(self, layer: int) -> None:
        self.convolve(layer)
        self.recur(layer)
        if self.is_prefill:
            self.gate(layer)


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


def floors(spec: DeltaNetSpec, lengths: list[int]) -> dict[str, float]:
    """Return the microseconds of each kernel's bytes, and of the recurrence's sums where they take longer."""
    tokens, values = sum(lengths), spec.value_heads * spec.value_size
    state_bytes = 8 * len(lengths) * values * spec.key_size
    conv = (4 * tokens * spec.conv_size + 2 * 6 * len(lengths) * spec.conv_size) / BYTES_A_US
    bytes_us = (state_bytes + 2 * tokens * (spec.conv_size + values)) / BYTES_A_US
    # K S, Q S and K^T V' of a token, T X and scores V' of half of its chunk; bf16, no operand split.
    flops = 2 * tokens * values * (3 * spec.key_size + 64)
    recur = max(bytes_us, flops / FLOPS_A_US) if max(lengths) > 1 else bytes_us
    return {"convolve": conv, "recur": recur, "gate": 6 * tokens * values / BYTES_A_US}


def measure(device: Gpu, name: str, lengths: list[int], label: str, rounds: int) -> list[dict[str, object]]:
    """Measure each kernel of a step, and all of them one after the other."""
    spec, rows = SHAPES[name], []
    state_bytes = 4 * len(lengths) * spec.value_heads * spec.key_size * spec.value_size
    count = max(2, min(30, -(-2 * layers.L2_BYTES // state_bytes)))
    case = Layers(device, spec, lengths, count)
    bounds = floors(spec, lengths)
    kinds = ("convolve", "recur", "gate") if case.is_prefill else ("convolve", "recur")
    bounds["all"] = sum(bounds[kind] for kind in kinds)
    launches = -(-LAUNCHES // count) * count
    for kind in (*kinds, "all"):
        run = layers.graph_of(device, partial(_launch, getattr(case, kind), launches, count))
        times = layers.time_us(device, run, launches, rounds)
        row = {
            "metric": f"Gated DeltaNet, {kind}, us a layer",
            "model": name,
            "step": label,
            "value": round(statistics.median(times), 2),
            "minimum": round(min(times), 2),
            "floor": round(bounds[kind], 2),
        }
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def _launch(step: Callable[[int], None], launches: int, count: int) -> None:
    for number in range(launches):
        step(number % count)


@click.command()
@click.option("--rounds", default=20, show_default=True, help="Runs of all layers a case.")
@click.option("--record", type=click.Path(path_type=Path), help="Write the rows there, as JSON.")
def main(rounds: int, record: Path | None) -> None:
    """Measure Gated DeltaNet alone."""
    device, rows = open_gpu(0), []
    for name in SHAPES:
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
