"""Measure the persistent step of a model in block FP8: ``build``, ``decode 1,8,16,32`` or ``phases 1``.

``decode`` shows the cosines of the start's self-test against the general path, and milliseconds of a step as
served, at 512 tokens. ``phases`` shows microseconds of each activity of a layer: mean of blocks, quickest,
slowest; layers of a kind apart. The model is the shape that ``SHAPE`` names, Qwen3.8-27B if nothing does.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path

NAME = os.environ.get("SHAPE", "qwen3.8-27b")
SHAPE = {"shape": NAME, "device": "cuda", "quantization": "fp8_block"}
CONTEXT, STEPS, PERIOD = 512, 48, 4


def show(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def build() -> None:
    """Compile this tree's kernel of that model alone into ``WISP_KERNELS``."""
    from wisp_runtime.ops.cuda.device import build as kernels
    from wisp_runtime.ops.cuda.device.catalogue import Catalogue

    for job in kernels.plan(Catalogue(Path("kernels")), ["sm_90a"], Path(os.environ["WISP_KERNELS"])):
        source = job.source
        if source.model == NAME and source.formats == ("fp8_block",) and not job.cubin.exists():
            kernels.compile_one(job, kernels.find_nvcc(), Path("kernels/include"))
            show(job.cubin.name)


def show_cosines() -> None:
    """Let the self-test of the start print each width's cosine, which it compares with a bound."""
    from wisp_runtime.engine.persistent import self_test

    compare, widths = self_test.compare_logits, self_test._WIDTHS

    def shown(*arguments: object) -> str | None:
        for width in widths:
            self_test._WIDTHS = (width,)
            self_test._MIN_COSINE = self_test._MIN_MIXTURE_COSINE = 1.1
            show(f"  self-test: {compare(*arguments)}")
        return None

    self_test.compare_logits = shown


def decode(sizes: list[int], path: str) -> None:
    """Show cosines, and milliseconds of a step of each size."""
    from wisp_runtime.bench.steps import decode_row
    from wisp_runtime.bench.target import TargetOptions, open_target

    show_cosines()
    target = open_target(TargetOptions(batch=max(sizes), context=800, decode_path=path, **SHAPE))
    for size in sizes:
        row = decode_row(target, batch=size, context=CONTEXT, steps=STEPS, sampling={"temperature": 0.0})
        show(f"B {size}: {row.value:.3f} ms ({row.path})")


def phases(batch: int) -> None:
    """Show microseconds of each activity, of a layer of each kind."""
    from wisp_runtime.bench.profile.profiling import Step, profile_persistent_step
    from wisp_runtime.bench.target import TargetOptions

    step = Step(batch, CONTEXT, None, 6)
    options = TargetOptions(batch=batch, context=step.max_context, decode_path="persistent", **SHAPE)
    title, intervals, target = profile_persistent_step(options, step)
    layers = len(target.spec.layers)
    sums: dict[tuple[str, str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for each in intervals:
        kind = "attends" if each.layer % PERIOD == PERIOD - 1 else "delta"
        kind = kind if each.layer < layers else "end"
        sums[kind, each.phase, each.activity][each.block] += each.us
    attend = sum(layer % PERIOD == PERIOD - 1 for layer in range(layers))
    counts = {"attends": attend, "delta": layers - attend, "end": 1}
    show(f"{title} {max(each.end_us for each in intervals):.0f} us")
    for (kind, phase, activity), blocks in sums.items():
        times = [time / counts[kind] for time in blocks.values()]
        mean = statistics.fmean(times)
        show(f"{kind:<8}{phase:<10}{activity:<9}{mean:8.2f}{min(times):8.2f}{max(times):8.2f}")


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "build":
        build()
    elif what == "decode":
        decode([int(size) for size in rest[0].split(",")], rest[1] if rest[1:] else "persistent")
    else:
        phases(int(rest[0]))
