"""Write the table of KV formats of docs/quantization.md from the records in tests/bench/records/.

python tests/bench/pages/kv_figures.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from performance import ROOT, read_records
from readme_figures import Records, row_of, table, value

PAGE = ROOT / "docs/quantization.md"
BEGIN, END = "<!-- KV figures: python tests/bench/pages/kv_figures.py -->", "<!-- KV figures end -->"
FORMATS, BATCHES = ("bf16", "fp8", "turbo8", "nvfp4", "turbo4", "turbo3"), (1, 8, 32)
MIXED = ("fp8, first and last 2 layers bf16", "turbo4, first and last 2 layers bf16")
SHAPE = "llama-3-8b"


def figures(records: Records) -> str:
    """Return the text between the marks."""
    heads = ("KV cache", *(f"ms, B = {batch}" for batch in BATCHES), "tokens a GiB", "off the ledger")
    rows = []
    for name in FORMATS:
        record, metric = f"decode-kv-{name}-{SHAPE}", "decode_step_ms"
        steps = (value(records, record, metric=metric, batch=batch) for batch in BATCHES)
        rows.append((f"`{name}`", *(f"{step:.2f}" for step in steps), *_capacity(records, name)))
    rows += ((name, *("" for _ in BATCHES), *_capacity(records, name)) for name in MIXED)
    return f"{BEGIN}\n{table(heads, rows)}{END}"


def _capacity(records: Records, kv: str) -> tuple[str, str]:
    row = row_of(records, "kv-capacity", shape=SHAPE, kv=kv)
    return f"{row['value']:,.0f}", f"{row['off_percent']:+.3f} %"


def main() -> None:
    """Write the table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + figures(read_records()) + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
