"""The CPU engine's decode step beside the time NumPy needs to read the same weights once.

The step is the engine's own (plan, pack, forward, sample, commit), greedy, on the example model. Beside it,
every weight is touched once in the same arena, with as many threads, in three ways: their sum, which is
what reading plainly is, their maximum, and their product with themselves. The floor is the fastest of the
three. Step and reads take turns, so that what else the machine does slows both. A benchmark, not a test: it
asserts no time.

    python tests/bench/bench_cpu_engine.py [--threads 1 --threads 2] [--rounds 60]

With ``--gguf FILE`` it times steps of a quantized model instead, its weights in float32 and as codes in turn.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import numpy as np

from wisp_plan.memory.cache import one_pool
from wisp_plan.weights.held import BF16, COMPACT
from wisp_runtime.bench.record import shown_command
from wisp_runtime.convert.example import example_model
from wisp_runtime.engine.execution.cpu_runner import CpuRunner
from wisp_runtime.engine.loop import step
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.layers.cache import allocate_blocks
from wisp_runtime.models.load import load_model, open_checkpoint, read_spec
from wisp_runtime.ops.registry import open_device

RECORDS = Path(__file__).parent / "records"
CASES = ((1, 128), (8, 128), (1, 1024), (8, 1024))  # sequences, tokens each holds when the clock starts
BLOCK_TOKENS = 16
READS: dict[str, Callable[[np.ndarray], object]] = {
    "max": np.max,
    "sum": np.sum,
    "dot": lambda part: part @ part,
}


def decoding(runner: CpuRunner, batch: int, context: int, rounds: int) -> Callable[[], object]:
    """Return a function that runs one decode step of ``batch`` sequences of about ``context`` tokens."""
    room = context + rounds + 8
    blocks = batch * -(-room // BLOCK_TOKENS)
    limits = Limits(
        one_pool(blocks, BLOCK_TOKENS),
        512,
        batch,
        room,
        runner.forward_pass.model.spec.vocab,
        reuses_prefixes=False,
    )
    scheduler = Scheduler(limits)
    greedy = SamplingParams(temperature=0.0)
    for number in range(batch):
        prompt = tuple(random.Random(number).choices(range(100, 40000), k=context))
        scheduler.submit(Submit(f"bench-{number}", prompt, rounds + 4, greedy, ignore_eos=True))
    while scheduler.load.generated_tokens_total < batch:
        step(scheduler, runner)
    return lambda: step(scheduler, runner)


def reading(arena: np.ndarray, threads: int, read: Callable[[np.ndarray], object]) -> Callable[[], object]:
    """Return a function that touches every weight once, with ``threads`` threads."""
    if threads == 1:
        return lambda: read(arena)
    pool, parts = ThreadPoolExecutor(threads), np.array_split(arena, threads)
    return lambda: list(pool.map(read, parts))


def alternate(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Time each function in turn, ``rounds`` times: milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def measure(folder: Path, threads: int, rounds: int) -> list[dict]:
    """Measure every case with ``threads`` threads."""
    spec, ops = read_spec(folder), open_device("cpu", threads=threads).ops
    arenas = []
    allocate = ops.weight_arena
    ops.weight_arena = lambda size_bytes: arenas.append(allocate(size_bytes)) or arenas[-1]
    model = load_model(folder, spec, ops)
    arena = arenas[0].view(np.float32)
    cache = allocate_blocks(spec, ops, blocks=8 * 1100 // BLOCK_TOKENS, block_tokens=BLOCK_TOKENS)
    runner = CpuRunner(model, cache, ops.sample)
    reads = {name: reading(arena, threads, read) for name, read in READS.items()}
    rows = []
    for batch, context in CASES:
        times = alternate({"step": decoding(runner, batch, context, rounds)} | reads, rounds)
        rows.append(row_of(threads, batch, context, times))
        print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def measure_held(file: Path, threads: int, rounds: int) -> list[dict]:
    """Measure steps with the weights of ``file`` in float32 and as codes, in turn."""
    spec, steps, bytes_of = read_spec(file), {}, {}
    for name, quantization in (("float32", BF16), ("codes", COMPACT)):
        ops = open_device("cpu", threads=threads).ops
        model = open_checkpoint(file, spec).held(quantization, ()).load(ops)
        bytes_of[name] = model.weights.arena.nbytes
        for batch, context in CASES[:2]:
            cache = allocate_blocks(spec, ops, blocks=8 * 300 // BLOCK_TOKENS, block_tokens=BLOCK_TOKENS)
            runner = CpuRunner(model, cache, ops.sample)
            steps[batch, context, name] = decoding(runner, batch, context, rounds)
    rows = []
    for batch, context in CASES[:2]:
        times = alternate({name: steps[batch, context, name] for name in bytes_of}, rounds)
        for name, values in times.items():
            row = {"metric": "decode step, ms", "weights": name, "threads": threads, "batch": batch}
            row |= {"context": context, "value": round(statistics.median(values), 2)}
            row |= {"minimum": round(min(values), 2), "weights_mib": round(bytes_of[name] / 2**20, 1)}
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)
    return rows


def row_of(threads: int, batch: int, context: int, times: dict[str, list[float]]) -> dict:
    """Sum one case up: medians and minima, in ms, of the step, of the plain read and of the fastest read."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    minima = {name: min(values) for name, values in times.items()}
    kind = min(READS, key=medians.__getitem__)
    fastest = min(minima[name] for name in READS)
    row = {
        "metric": "decode step, ms",
        "threads": threads,
        "batch": batch,
        "context": context,
        "value": medians["step"],
        "minimum": minima["step"],
        "sum": medians["sum"],
        "sum_minimum": minima["sum"],
        "over_sum": medians["step"] / medians["sum"],
        "over_sum_minima": minima["step"] / minima["sum"],
        "floor": medians[kind],
        "floor_minimum": fastest,
        "floor_kind": kind,
        "over_floor": medians["step"] / medians[kind],
        "over_floor_minima": minima["step"] / fastest,
    }
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}


def show(rows: list[dict]) -> None:
    """Print one table."""
    print("medians (minima): threads batch context   step ms        / sum         / fastest read   / batch 1")
    alone = {(row["threads"], row["context"]): row for row in rows if row["batch"] == 1}
    for row in rows:
        one = alone[row["threads"], row["context"]]
        print(
            f"{row['threads']:26} {row['batch']:5} {row['context']:7}"
            f" {row['value']:9.1f} ({row['minimum']:.1f})"
            f" {row['over_sum']:7.2f} ({row['over_sum_minima']:.2f})"
            f" {row['over_floor']:7.2f} ({row['over_floor_minima']:.2f}) {row['floor_kind']}"
            f" {row['value'] / one['value']:7.2f} ({row['minimum'] / one['minimum']:.2f})"
        )


def machine() -> str:
    """Name the processor, and how busy the machine is with other things."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{model}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the start"


@click.command()
@click.option(
    "--threads", multiple=True, type=int, help="CPU threads; may be given again (default: 1, and all)."
)
@click.option("--rounds", default=60, show_default=True, help="Steps a case.")
@click.option("--gguf", type=click.Path(path_type=Path, exists=True), help="A quantized model instead.")
@click.option(
    "--record", type=click.Path(path_type=Path), help="Default: records/cpu_engine.json beside this."
)
def main(threads: tuple[int, ...], rounds: int, gguf: Path | None, record: Path | None) -> None:
    """Measure the CPU engine's decode step beside reading its weights."""
    where, name = machine(), "cpu_weights" if gguf else "cpu_engine"
    record = record or RECORDS / f"{name}.json"
    chosen = threads or tuple(sorted({1, len(os.sched_getaffinity(0))}))
    if gguf:
        rows = [row for count in chosen for row in measure_held(gguf, count, rounds)]
    else:
        folder = example_model()
        rows = [row for count in chosen for row in measure(folder, count, rounds)]
        show(rows)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    content = {
        "name": name,
        "commit": commit.stdout.strip(),
        "machine": where,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "command": shown_command(["python", "tests/bench/bench_cpu_engine.py", *sys.argv[1:]]),
        "rows": rows,
    }
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps(content, indent=1) + "\n")
    print(f"record: {record}", file=sys.stderr)


if __name__ == "__main__":
    main()
