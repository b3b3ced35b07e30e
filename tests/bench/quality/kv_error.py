"""Mean squared error of every KV format: of Gaussian rows, and of the example model's keys and values.

    python tests/bench/quality/kv_error.py

Relative to the mean square, averaged over layers; the first 512 tokens of english.txt. Writes
records/kv-error-smollm2.json and prints the table of docs/quantization.md.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.kv_formats.layers import KV_FORMATS
from wisp_runtime.bench.record import shown_command
from wisp_runtime.convert.example import NAME, TITLE, example_model
from wisp_runtime.layers.cache import allocate_blocks
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.models.single_sequence import BLOCK_TOKENS, blocks_of, sequence_batch
from wisp_runtime.models.text_tokens import read_tokens
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.reference.kv_cache.blocks import decode_rows, encode_rows

HERE = Path(__file__).parent
RECORD = HERE.parent / "records/kv-error-smollm2.json"
TEXT = HERE / "english.txt"
TOKENS, GAUSSIAN_ROWS = 512, 20_000
OUTLIERS = (10, 100)
"""Standard deviations of one channel of otherwise Gaussian rows, whose other channels are compared."""


def keys_and_values() -> tuple[np.ndarray, np.ndarray]:
    """Return the example model's keys after RoPE and its values, ``[L, Hkv, S, Dh]`` each."""
    folder, ops = example_model(), CpuOps(2)
    spec = read_spec(folder)
    tokens = read_tokens(folder, TEXT.read_text(encoding="utf-8"), spec.vocab)[:TOKENS]
    cache = allocate_blocks(spec, ops, blocks=blocks_of(TOKENS), block_tokens=BLOCK_TOKENS)
    load_model(folder, spec, ops).forward(sequence_batch(tokens, 0, TOKENS, [TOKENS - 1]), cache)
    keys, values = (
        array.transpose(0, 2, 1, 3, 4).reshape(len(array), array.shape[2], -1, array.shape[-1])
        for array in (cache.keys, cache.values)
    )
    return keys[:, :, :TOKENS], values[:, :, :TOKENS]


def error(kv_format: KvFormat, rows: np.ndarray) -> float:
    """Return the mean squared error of rows over their mean square, averaged over the first axis."""
    found = decode_rows(kv_format, *encode_rows(kv_format, rows, 1.0), 1.0)
    others = tuple(range(1, rows.ndim))
    return float((((found - rows) ** 2).mean(others) / (rows**2).mean(others)).mean())


def error_beside(kv_format: KvFormat, gaussian: np.ndarray, factor: float) -> float:
    """Return the error of Gaussian rows but for their first channel, which is ``factor`` times as large."""
    rows = gaussian.copy()
    rows[..., 0] *= factor
    found = decode_rows(kv_format, *encode_rows(kv_format, rows, 1.0), 1.0)
    return float(((found - rows)[..., 1:] ** 2).mean() / (rows[..., 1:] ** 2).mean())


def rows() -> Iterator[dict[str, object]]:
    """Yield a row a format and kind of rows."""
    keys, values = keys_and_values()
    size = keys.shape[-1]
    gaussian = np.random.default_rng(0).standard_normal((1, GAUSSIAN_ROWS, size)).astype(np.float32)
    for kv_format in (found for found in KV_FORMATS.values() if found.is_quantized):
        bits = 8 * kv_format.row_bytes(size) / size
        for what, data in (("gaussian", gaussian), ("keys", keys), ("values", values)):
            made = {"metric": "kv_error", "shape": NAME, "weights": "bf16", "kv": kv_format.name}
            yield made | {"path": "reference", "of": what, "bits": bits, "value": error(kv_format, data)}
        for factor in OUTLIERS:
            what = f"beside a channel of {factor}"
            beside = error_beside(kv_format, gaussian, factor)
            yield made | {"path": "reference", "of": what, "bits": bits, "value": beside}


def table(measured: list[dict[str, object]]) -> str:
    """Return the table of docs/quantization.md."""
    beside = " | ".join(f"beside {factor} σ" for factor in OUTLIERS)
    lines = [f"| KV cache | bits | Gaussian | keys | values | {beside} |", "|---|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["kv"] for row in measured):
        mine = [row for row in measured if row["kv"] == name]
        cells = [name, f"{mine[0]['bits']:g}", *(f"{float(str(row['value'])):.5f}" for row in mine)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


@click.command()
def main() -> None:
    """Measure, print the table, and write the record."""
    measured = list(rows())
    head = ["git", "rev-parse", "--short", "HEAD"]
    record = {
        "name": "kv-error-smollm2",
        "commit": subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip(),
        "machine": f"{platform.machine()}, 2 threads",
        "model": f"{TITLE}, converted from its GGUF in Q4_1",
        "text": f"{TEXT.name}, the first {TOKENS} tokens",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "command": shown_command(["python", "tests/bench/quality/kv_error.py", *sys.argv[1:]]),
        "rows": measured,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    click.echo(table(measured))


if __name__ == "__main__":
    main()
