"""Microseconds of choosing tokens on the GPU, by rows and by what they ask for, as replayed in a CUDA graph.

Each graph holds the same step many times, so its logits lie in the L2 cache, as they do after lm_head, if
they fit (up to about 64 rows of 128,256). Two kinds of logits: ``peaked`` as a language model's, few tokens
with most of the probability, and ``flat``, normal numbers. A benchmark, not a test: it asserts no time.

    python tests/bench/bench_sampling.py [--vocab 128256] [--rows 1 --rows 64] [--record FILE.json]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import cupy as cp
import numpy as np

from wisp_runtime.batch import SamplingBatch
from wisp_runtime.bench.record import shown_command
from wisp_runtime.ops.cuda.device.arrays import to_device
from wisp_runtime.ops.cuda.device.gpu import Gpu, open_gpu
from wisp_runtime.ops.cuda.sampling.sampler import Sampler

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime/support"))
from sampling_rows import batch

STEPS = 20  # a graph
REPLAYS = 15
GREEDY = {"temperature": 0.0}
MODES: dict[str, tuple[dict[str, Any], int, bool]] = {  # rules, alternatives, known to be greedy
    "greedy, known": (GREEDY, -1, True),
    "greedy": (GREEDY, -1, False),
    "temperature": ({}, -1, False),
    "top-k 50": ({"top_k": 50}, -1, False),
    "top-p 0.9": ({"top_p": 0.9}, -1, False),
    "top-k 50, top-p 0.9": ({"top_k": 50, "top_p": 0.9, "temperature": 0.7}, -1, False),
    "min-p 0.05": ({"min_p": 0.05}, -1, False),
    "one sampled row": ({}, -1, False),
    "greedy, masked": (GREEDY, -1, False),
    "greedy, repetition penalty": (GREEDY | {"repetition_penalty": 1.1}, -1, False),
    "greedy, 20 alternatives": (GREEDY, 20, False),
}


def logits_of(kind: str, rows: int, vocab: int) -> np.ndarray:
    """Make rows of logits."""
    random = np.random.default_rng(7)
    logits = random.standard_normal((rows, vocab), np.float32)
    if kind == "peaked":
        logits *= 2.2
        for row in logits:
            row[random.choice(vocab, 60, replace=False)] += random.exponential(5, 60).astype(np.float32) + 5
    return logits


def sampling_of(mode: str, rows: int, vocab: int) -> SamplingBatch:
    """Make the parameters of a mode."""
    rules = dict(MODES[mode][0])
    if mode == "one sampled row":
        rules |= {"temperature": np.eye(1, rows, dtype=np.float32)[0], "top_p": 0.9}
    if mode == "greedy, masked":
        rules["bitmask"] = np.full((rows, -(-vocab // 32)), 0x5555FFFF, np.uint32)
    if "repetition_penalty" in rules:
        rules["seen"] = np.full((rows, -(-vocab // 32)), 0x01010101, np.uint32)
    return batch(rows, **rules)


def microseconds(device: Gpu, launch: Callable[[], object]) -> list[float]:
    """Time one step, ``REPLAYS`` times."""
    launch()
    device.synchronize()
    device.stream.begin_capture()
    for _ in range(STEPS):
        launch()
    graph = device.stream.end_capture()
    times = []
    for _ in range(REPLAYS + 3):
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record(device.stream)
        graph.launch(device.stream)
        stop.record(device.stream)
        stop.synchronize()
        times.append(1e3 * cp.cuda.get_elapsed_time(start, stop) / STEPS)
    return times[3:]


def measure(device: Gpu, sampler: Sampler, kind: str, rows: int) -> list[dict[str, Any]]:
    """Measure every mode for one number of rows."""
    logits = to_device(logits_of(kind, rows, sampler.vocab))
    host = np.zeros(sampler.parameter_bytes, np.uint8)
    view, parameters = sampler.host_view(host), to_device(host)
    found = []
    for mode, (_, alternatives, is_greedy) in MODES.items():
        sampling = sampling_of(mode, rows, sampler.vocab)
        start = time.perf_counter()
        for _ in range(50):
            sampler.fill(view, sampling)
        fill_us = 1e6 * (time.perf_counter() - start) / 50
        parameters.set(host)
        options = {"logprobs": alternatives, "greedy": is_greedy}
        times = microseconds(
            device, lambda options=options: sampler.launch(logits, rows, parameters, **options)
        )
        row = {"logits": kind, "rows": rows, "mode": mode, "us": round(statistics.median(times), 2)}
        found.append(row | {"minimum_us": round(min(times), 2), "fill_us": round(fill_us, 1)})
        print(f"{kind:7} R={rows:4} {mode:24} {row['us']:8.1f} us   fill {fill_us:6.1f} us")
    return found


@click.command()
@click.option("--vocab", default=128256, show_default=True)
@click.option("--rows", multiple=True, type=int, default=(1, 4, 16, 64, 256), show_default=True)
@click.option("--record", type=click.Path(path_type=Path), help="write the measurements there")
def main(vocab: int, rows: tuple[int, ...], record: Path | None) -> None:
    """Measure the sampler on this GPU."""
    device = open_gpu()
    sampler = Sampler(device, vocab, max(rows))
    sampler.reserve()
    device.workspace.seal()
    measured = [row for kind in ("peaked", "flat") for n in rows for row in measure(device, sampler, kind, n)]
    if record:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        command = shown_command(sys.argv)
        record.write_text(
            json.dumps(
                {
                    "commit": commit.stdout.strip(),
                    "gpu": device.name,
                    "vocab": vocab,
                    "command": command,
                    "measurements": measured,
                },
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
