"""Check and time the persistent decode kernel with weights of each format.

    python tests/bench/persistent/bench_formats.py fp8:1,8,16,32 int4 --json formats.json      on a Hopper

Random weights of the shape (every second layer has the same), sequences of 512 tokens. A step of one layer is
compared with float32 of the dequantized weights, stage by stage; the full depth gives the same bits five
times; then 20 launches are timed between two events, five times. The lower bound is the bytes over 4.5 TB/s.
A format may name the head's: ``int4+fp8``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from step_subject import StepSubject

_SIZES = (1, 8, 16, 32)
_BYTES_PER_MS = 4.5e9
_LAUNCHES, _REPEATS, _REPLAYS = 20, 5, 5


def main() -> None:
    """Read the command line, run every format, print and write the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("formats", nargs="+", help="FORMAT[+HEAD FORMAT][:B,B,...]")
    parser.add_argument("--shape", default="llama-3-8b")
    parser.add_argument("--layers", type=int, help="default: the shape's")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cubins", type=Path, nargs="+", help="folders of FORMAT.cubin")
    parser.add_argument("--profile", action="store_true", help="mean microseconds of each phase")
    options = parser.parse_args()
    rows = []
    for given in options.formats:
        formats, _, sizes = given.partition(":")
        begin_s = time.monotonic()
        subject = StepSubject(options.shape, *formats.split("+"), layers=options.layers)
        print(f"{formats}: weights made in {time.monotonic() - begin_s:.1f} s", flush=True)
        for cubins in options.cubins or [None]:
            name = f"{formats}, {cubins.name}" if cubins else formats
            if cubins and not (cubins / f"{formats}.cubin").is_file():
                continue
            subject.load(cubins)
            for size in map(int, sizes.split(",") if sizes else _SIZES):
                row = {"format": name, "sequences": size} | measure(subject, size)
                if options.profile:
                    row["phases_us"] = subject.phases_us(size)
                print(json.dumps(row), flush=True)
                rows.append(row)
        del subject
        cp.get_default_memory_pool().free_all_blocks()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    print_table(rows)


def measure(subject: StepSubject, size: int) -> dict[str, Any]:
    """Return the worst cosine and the norm's ratio of each stage, whether bits stay, and the times."""
    found: dict[str, Any] = subject.compare(size)
    first = subject.step(size).copy()
    found["same_bits"] = all(bool((subject.step(size) == first).all()) for _ in range(_REPLAYS))
    found["finite"] = bool(cp.isfinite(first[:size]).all())
    times_ms = []
    for _ in range(_REPEATS):
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        begin.record()
        for _ in range(_LAUNCHES):
            subject.launch(size)
        end.record()
        end.synchronize()
        times_ms.append(cp.cuda.get_elapsed_time(begin, end) / _LAUNCHES)
    subject.require_sound()
    found["ms"] = round(float(np.median(times_ms)), 4)
    found["bound_ms"] = round(subject.step_bytes(size) / _BYTES_PER_MS, 3)
    return found


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print milliseconds and lower bounds, a line a format."""
    sizes = sorted({row["sequences"] for row in rows})
    print("| format | " + " | ".join(f"B {size} (bound)" for size in sizes) + " | worst cosine |")
    for name in dict.fromkeys(row["format"] for row in rows):
        own = {row["sequences"]: row for row in rows if row["format"] == name}
        cells = [f"{own[b]['ms']:.3f} ({own[b]['bound_ms']:.2f})" if b in own else "" for b in sizes]
        worst = min(min(row["cosines"].values()) for row in own.values())
        print(f"| {name} | " + " | ".join(cells) + f" | {worst:.7f} |")


if __name__ == "__main__":
    main()
