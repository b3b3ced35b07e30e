"""Seconds and peak memory of ``wisp-runtime quantize``: of one checkpoint, or of a named shape's.

    python tests/bench/quality/cost.py SHAPE FOLDER RECORD [--case fp8,rtn --case int4,awq]

Writes a checkpoint of the shape with random weights into FOLDER, quantizes it in a process a case, and
deletes each result. A case that is cut off by --limit says how far it came.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click

QUANTIZE = """\
from wisp_runtime.cli.main import main
main(standalone_mode=False)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def quantized(
    source: Path, target: Path, to: str, method: str, threads: int, limit_s: float | None = None
) -> dict[str, object]:
    """Quantize in a process of its own; return its seconds, its peak memory and the bytes of the result."""
    command = [sys.executable, "-c", QUANTIZE]
    command += ["quantize", str(source), str(target), "--to", to, "--method", method]
    command += ["--threads", str(threads), "--json"]
    began_s = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode().splitlines()
        return {"stopped_after_s": limit_s, "said": said[-1] if said else ""}
    made, peak_kib = done.stdout.splitlines()
    return {
        "seconds": round(time.monotonic() - began_s, 1),
        "peak_bytes": int(peak_kib) * 1024,
        "weights_bytes": json.loads(made)["resultBytes"],
    }


@click.command()
@click.argument("shape")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--case", "cases", multiple=True, default=("fp8,rtn", "int4,rtn", "nvfp4,rtn", "int4,awq"))
@click.option("--threads", type=click.IntRange(1), default=os.cpu_count())
@click.option("--limit", "limit_s", type=float, default=None, help="Seconds of a case, at most.")
def main(
    shape: str, folder: Path, record: Path, cases: tuple[str, ...], threads: int, limit_s: float | None
) -> None:
    """Measure every case, and write the record."""
    from wisp_runtime.bench.checkpoint import write_checkpoint
    from wisp_runtime.bench.record import shown_command

    began_s = time.monotonic()
    size = write_checkpoint(shape, folder / "source", lambda _done, _total: None)
    click.echo(f"{shape}: {size / 1e9:.1f} GB written in {time.monotonic() - began_s:.1f} s", err=True)
    rows = []
    for case in cases:
        to, _, method = case.partition(",")
        target = folder / f"{to}-{method}"
        cost = quantized(folder / "source", target, to, method, threads, limit_s)
        shutil.rmtree(target)
        shared = {"metric": "quantize", "shape": shape, "weights": to, "method": method, "threads": threads}
        rows.append(shared | {"source_bytes": size} | cost)
        click.echo(json.dumps(rows[-1]), err=True)
        made = {
            "name": record.stem,
            "machine": f"{platform.machine()}, {threads} threads",
            "command": shown_command(["python", "tests/bench/quality/cost.py", *sys.argv[1:]]),
            "rows": rows,
        }
        record.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
