"""docs/quantization.md shows the records of the example model's perplexity and of the KV formats' errors."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench/quality"))
import kv_error
import measure

ROOT = Path(__file__).parents[3]


def test_the_table_of_perplexities_is_that_of_the_record():
    rows = json.loads(measure.RECORD.read_text(encoding="utf-8"))["rows"]
    page = (ROOT / "docs/quantization.md").read_text(encoding="utf-8")
    assert measure.table(rows) in page, "run: python tests/bench/quality/measure.py --table"


def test_the_table_of_kv_errors_is_that_of_the_record():
    rows = json.loads(kv_error.RECORD.read_text(encoding="utf-8"))["rows"]
    page = (ROOT / "docs/quantization.md").read_text(encoding="utf-8")
    assert kv_error.table(rows) in page, "run: python tests/bench/quality/kv_error.py"


def test_the_record_has_every_format():
    rows = json.loads(measure.RECORD.read_text(encoding="utf-8"))["rows"]
    assert {(row["weights"], row["method"]) for row in rows if "method" in row} == set(measure.CASES)
    assert {row["kv"] for row in rows} >= {"bf16", "fp8", "nvfp4", "turbo4"}
