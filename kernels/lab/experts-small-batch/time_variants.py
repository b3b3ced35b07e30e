"""Compare and time variants of Qwen3-30B-A3B's persistent step in block FP8, on the same weights.

    python time_variants.py OUT.json < LINES    of build_variants.py

1. A model of one layer: cosines with the general path of rows whose choice of experts is clear, as
   tests/gpu/persistent/test_persistent_experts.py asks for them.
2. All 48 layers at 1, 8, 16 and 32 sequences of 512 tokens: whether the logits have main's bits (the
   patches keep the order of every sum), ms a step, variants in turn, and microseconds a layer of each part
   of a phase.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import cupy as cp
import numpy as np
import test_persistent_experts as tests
from cuda.bindings import driver as cu
from spec_changes import changed
from test_persistent_decode import CONTEXTS, Subject

from wisp_plan.presets import shape_spec
from wisp_runtime.bench.profile import step_clocks
from wisp_runtime.ops.cuda.device.driver import ok
from wisp_runtime.ops.cuda.device.gpu import open_gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel

BATCHES, TRACED = (1, 8, 16, 32), {1: None, 8: None, 16: ("main", "all"), 32: ("main", "all")}
ROUNDS, STEPS, SLOWEST = 5, 16, ("attention multiply", "gate/up multiply")


def load(cubin: str, stream: Any) -> dict[int, Kernel]:
    """Return a cubin's kernel of each width."""
    module = ok(cu.cuModuleLoadData(Path(cubin).read_bytes()), cubin)
    names = {width: f"persistent_decode_n{width}" for width in (8, 16, 32)}

    def kernel(name: str) -> Kernel:
        function = ok(cu.cuModuleGetFunction(module, name.encode()), name)
        return Kernel(name, function, stream, can_overlap=True)

    return {width: kernel(name) for width, name in names.items()}


def check(device: Any, variants: dict[str, dict[int, Kernel]]) -> dict[str, str]:
    """Compare a layer of each variant with the general path; return what is wrong."""
    subject, wrong = tests.subject_of(device, 1, "fp8_block"), dict[str, str]()
    for name, kernels in variants.items():
        subject.step._kernels = kernels
        try:
            for contexts in ("one", "eight", "sixteen", "thirty-two"):
                tests.check_layer(subject, CONTEXTS[contexts])
        except AssertionError as error:
            wrong[name] = str(error)[:300]
    return wrong


def time_in_turn(subject: Subject, batch: Any, variants: dict[str, dict[int, Kernel]]) -> dict[str, float]:
    """Return each variant's median milliseconds a step."""
    times = defaultdict(list)
    for _ in range(ROUNDS):
        for name, kernels in variants.items():
            subject.step._kernels = kernels
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            begin.record()
            for _ in range(STEPS):
                subject.step(batch, subject.cache.groups)
            end.record()
            end.synchronize()
            times[name].append(cp.cuda.get_elapsed_time(begin, end) / STEPS)
    return {name: round(statistics.median(each), 4) for name, each in times.items()}


def parts(subject: Subject, batch: Any) -> dict[str, float]:
    """Return microseconds a layer of each part of a phase, several passes added.

    Means of the blocks; of ``SLOWEST`` also the slowest block's, for which the others wait.
    """
    trace = subject.step.traced(lambda: subject.step(batch, subject.cache.groups))
    sums: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for interval in step_clocks.read(trace):
        if interval.phase not in ("embedding", "head"):
            sums[f"{interval.phase} {interval.activity}"][interval.block] += interval.us
    layers, found = len(subject.spec.layers), dict[str, float]()
    for part, blocks in sums.items():
        found[part] = round(sum(blocks.values()) / len(trace) / layers, 2)
        if part in SLOWEST:
            found[f"{part.split()[0]} slowest"] = round(max(blocks.values()) / layers, 2)
    return found


def measure(device: Any, variants: dict[str, dict[int, Kernel]], out: Path) -> None:
    """Time all layers, print the tables, and write them to ``out``."""
    spec = changed(shape_spec(tests.SHAPE), max_context=8192)
    subject, rows = Subject(device, spec, blocks=1200, quantization="fp8_block"), list[dict[str, Any]]()
    subject.step.count_experts(subject.model.expert_load.counts)
    for size in BATCHES:
        batch, logits = subject.batch([512] * size), dict[str, Any]()
        for name, kernels in variants.items():
            subject.step._kernels = kernels
            logits[name] = subject.persistent(batch)
        times = time_in_turn(subject, batch, variants)
        for name in variants:
            same = bool(np.array_equal(logits[name], logits["main"]))
            rows.append({"batch": size, "variant": name, "ms": times[name], "bits_as_main": same})
            click.echo(f"B {size:2} {name:20} {times[name]:7.3f} ms  {'same' if same else 'OTHER'} bits")
        rows += show_parts(subject, batch, {name: variants[name] for name in TRACED[size] or variants})
        out.write_text(json.dumps(rows, indent=1))


def show_parts(subject: Subject, batch: Any, variants: dict[str, dict[int, Kernel]]) -> list[dict[str, Any]]:
    """Print a line for each part of a phase, a column for each variant; return them by variant."""
    size, found = len(batch.tokens), dict[str, dict[str, float]]()
    for name, kernels in variants.items():
        subject.step._kernels = kernels
        found[name] = parts(subject, batch)
    click.echo(f"B {size:2} {'us a layer':20} " + " ".join(f"{name[:7]:>7}" for name in found))
    for part in found["main"]:
        values = " ".join(f"{found[name].get(part, 0):7.2f}" for name in found)
        click.echo(f"B {size:2} {part:20} {values}")
    return [{"batch": size, "variant": name, "us_a_layer": each} for name, each in found.items()]


def main() -> None:
    """Check, then measure."""
    device = open_gpu(0)
    cubins = dict(line.split() for line in sys.stdin)
    variants = {name: load(cubin, device.stream) for name, cubin in cubins.items()}
    wrong = check(device, variants)
    click.echo(f"one layer: {wrong or 'all variants as the general path'}")
    measure(device, variants, Path(sys.argv[1]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
