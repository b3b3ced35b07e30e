"""Run many steps of the persistent decode kernel, of changing batches, and compare every replay.

    python tests/bench/soak_decode_step.py --steps 100000 --json soak.json      on a Hopper

Forty batches of random sizes and contexts are run once each; then they are replayed as CUDA graphs in random
order, and each time all logits are compared, bit for bit, with those of the first time. A hang ends in
KernelFault with the waits of its blocks.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import cupy as cp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu/persistent"))
from test_persistent_decode import Subject

from wisp_plan.presets import shape_spec
from wisp_runtime.bench.record import Row, make_record, write_record
from wisp_runtime.ops.cuda.device.gpu import open_gpu

_BATCHES, _TELL_EVERY = 40, 20000
_MAX_SEQUENCES, _MAX_CONTEXT = 32, 1400
_BLOCKS = _MAX_SEQUENCES * -(-_MAX_CONTEXT // 16)
_COMPARE = cp.RawKernel(
    r"""
    extern "C" __global__ void compare(const unsigned* a, const unsigned* b, long long size, unsigned* differ)
    {
      bool differs = false;
      const long long step = gridDim.x * 256ll;
      for (long long i = blockIdx.x * 256ll + threadIdx.x; i < size; i += step) differs |= a[i] != b[i];
      if (__syncthreads_or(differs) && threadIdx.x == 0) atomicAdd(differ, 1u);
    }
    """,
    "compare",
)


def main() -> None:
    """Read the command line, run, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit")
    options = parser.parse_args()
    seconds, differing = soak(options.shape, options.steps)
    row = Row(
        "decode_steps_soaked",
        options.steps,
        "persistent",
        options.shape,
        "bf16",
        "bf16",
        more={"seconds": round(seconds, 1), "batches": _BATCHES, "differing": differing, "hangs": 0},
    )
    print(f"{options.steps} steps in {seconds:.1f} s, {differing} differing replays")
    if options.json:
        typed = ["python", "tests/bench/soak_decode_step.py", f"--steps {options.steps}"]
        record = make_record("soak-decode-step", [row], device="cuda", command=typed, commit=options.commit)
        write_record(options.json, record)
    sys.exit(differing > 0)


def soak(shape: str, steps: int) -> tuple[float, int]:
    """Return the seconds that the steps took, and how many replays differed."""
    device = open_gpu(0)
    subject = Subject(device, shape_spec(shape), blocks=_BATCHES * _BLOCKS)
    random, stream = np.random.default_rng(3), device.stream
    # No batch's new tokens are in another's context.
    blocks = [range(n * _BLOCKS, (n + 1) * _BLOCKS) for n in range(_BATCHES)]
    batches = [subject.batch(_contexts(random), 1 + n, own) for n, own in enumerate(blocks)]
    expected = [cp.asarray(subject.persistent(batch)) for batch in batches]
    differ, graphs = cp.zeros(1, np.uint32), []
    for batch, wanted in zip(batches, expected, strict=True):
        stream.synchronize()
        stream.begin_capture()
        logits = subject.step(batch, subject.cache.groups)
        _COMPARE((132,), (256,), (logits, wanted, np.int64(wanted.size), differ))
        graphs.append(stream.end_capture())
    began_s = time.monotonic()
    for step, choice in enumerate(random.integers(0, _BATCHES, steps)):
        graphs[choice].launch(stream)
        if step % _TELL_EVERY == 0:
            device.synchronize()
            print(f"{step} steps, {int(differ.get()[0])} blocks differ", file=sys.stderr)
    device.synchronize()
    return time.monotonic() - began_s, int(differ.get()[0])


def _contexts(random: np.random.Generator) -> list[int]:
    return random.integers(1, _MAX_CONTEXT, random.integers(1, _MAX_SEQUENCES + 1)).tolist()


if __name__ == "__main__":
    main()
