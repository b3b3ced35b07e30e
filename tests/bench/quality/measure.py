"""Perplexity of the example model in every format of weights and KV cache, and the cost of quantizing it.

    python tests/bench/quality/measure.py [--threads 2]

Each format is made by ``wisp-runtime quantize`` in a process of its own, whose seconds and peak memory are
kept; the perplexity is that of ``wisp-runtime bench perplexity`` on english.txt (public-domain prose and some
of our own). Writes records/quality-smollm2.json and prints the table of docs/quantization.md.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from cost import quantized

from wisp_plan.kv_formats.layers import SERVED_KV_FORMATS
from wisp_runtime.bench.perplexity import perplexity_of
from wisp_runtime.bench.record import shown_command
from wisp_runtime.convert.example import NAME, TITLE, example_model

HERE = Path(__file__).parent
RECORD = HERE.parent / "records/quality-smollm2.json"
TEXT = HERE / "english.txt"
CASES = [(to, method) for to in ("fp8", "int8", "int4", "nvfp4") for method in ("rtn", "awq")]


def rows(threads: int) -> Iterator[dict[str, object]]:
    """Yield a row a format."""
    source, text = example_model(), TEXT.read_text(encoding="utf-8")

    def row(folder: Path, weights: str, kv: str = "bf16", **more: object) -> dict[str, object]:
        found = perplexity_of(folder, text, kv=kv, threads=threads, on_progress=lambda *_: None)
        made = {"metric": "perplexity", "shape": NAME, "weights": weights, "kv": kv, "path": "reference"}
        return made | {"value": round(found.value, 3), "tokens": found.tokens} | more

    yield row(source, "bf16", weights_bytes=sum(path.stat().st_size for path in source.glob("*.safetensors")))
    for to, method in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            cost = quantized(source, Path(scratch) / "made", to, method, threads)
            yield row(Path(scratch) / "made", to, method=method, **cost)
    for kv in SERVED_KV_FORMATS["cpu"][1:]:
        yield row(source, "bf16", kv)


def table(measured: list[dict[str, object]]) -> str:
    """Return the table of docs/quantization.md."""
    base = float(str(measured[0]["value"]))
    lines = [
        "| weights | KV cache | perplexity | of bf16 | MB | s | peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in measured:
        weights = f"{row['weights']}, {row['method']}" if "method" in row else row["weights"]
        value = float(str(row["value"]))
        cells = [weights, row["kv"], f"{value:.2f}", f"{100 * (value / base - 1):+.1f} %"]
        for key, unit, form in (
            ("weights_bytes", 1e6, ".0f"),
            ("seconds", 1, ".0f"),
            ("peak_bytes", 1e6, ".0f"),
        ):
            cells.append(format(float(str(row[key])) / unit, form) if key in row else "")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


@click.command()
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option(
    "--table", "only_table", is_flag=True, help="Print the table of the record, and measure nothing."
)
def main(threads: int, only_table: bool) -> None:
    """Measure, print the table, and write the record."""
    if only_table:
        click.echo(table(json.loads(RECORD.read_text(encoding="utf-8"))["rows"]))
        return
    measured = []
    for row in rows(threads):
        measured.append(row)
        click.echo(json.dumps(row), err=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    record = {
        "name": "quality-smollm2",
        "commit": commit.stdout.strip(),
        "machine": f"{platform.machine()}, {threads} threads",
        "model": f"{TITLE}, converted from its GGUF in Q4_1",
        "text": f"{TEXT.name}, windows of 512 tokens",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "command": shown_command(["python", "tests/bench/quality/measure.py", *sys.argv[1:]]),
        "rows": measured,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    click.echo(table(measured))


if __name__ == "__main__":
    main()
