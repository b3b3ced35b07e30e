"""docs/quantization.md shows the record of the example model's perplexity."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench/quality"))
import measure

ROOT = Path(__file__).parents[3]


def test_the_table_of_perplexities_is_that_of_the_record():
    rows = json.loads(measure.RECORD.read_text(encoding="utf-8"))["rows"]
    page = (ROOT / "docs/quantization.md").read_text(encoding="utf-8")
    assert measure.table(rows) in page, "run: python tests/bench/quality/measure.py --table"


def test_the_record_has_every_format():
    rows = json.loads(measure.RECORD.read_text(encoding="utf-8"))["rows"]
    assert {(row["weights"], row["method"]) for row in rows if "method" in row} == set(measure.CASES)
    assert {row["kv"] for row in rows} >= {"bf16", "fp8", "nvfp4", "turbo4"}
