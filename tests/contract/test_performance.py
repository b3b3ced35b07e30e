"""docs/performance.md is generated from the records, and records are complete."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
sys.path.insert(0, str(Path(__file__).parents[1] / "bench/pages"))
import kv_figures
import performance
import quantization_figures
import readme_figures

ROOT = Path(__file__).parents[2]
RECORDS = performance.read_records()
OF_A_GPU = {name: record for name, record in RECORDS.items() if record.get("gpu")}


def test_the_page_is_generated_from_the_records():
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    assert page == performance.page(RECORDS), "run: python tests/bench/performance.py"


def test_the_figures_of_the_readme_are_those_of_the_records():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme_figures.figures(RECORDS) in readme, "run: python tests/bench/pages/readme_figures.py"


def test_the_decode_steps_of_quantized_weights_are_those_of_the_records():
    page = (ROOT / "docs/quantization.md").read_text(encoding="utf-8")
    remedy = "run: python tests/bench/pages/quantization_figures.py"
    assert quantization_figures.figures(RECORDS) in page, remedy
    assert kv_figures.figures(RECORDS) in page, "run: python tests/bench/pages/kv_figures.py"


def test_no_record_and_no_page_names_a_folder_of_the_machine_that_measured():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "tests/bench/records").glob("*")]
    own = [path for path in pages if path.suffix in (".md", ".json")]
    assert own
    named = [path.name for path in own if "/tmp/" in path.read_text(encoding="utf-8")]
    assert named == [], "let wisp_runtime.bench.record.shown_command shorten the command"


def served(server: str) -> list[dict]:
    """Rows of one server in the record of tests/bench/peer/compare.py."""
    spread = {"mean": 2.0, "p50": 1.0, "p90": 3.0, "p99": 4.0}
    both = {"first_token_ms": spread, "time_per_token_ms": spread, "output_tokens_per_s": 5000.0}
    alone = [f"alone, {prompt} tokens" for prompt in (128, 512, 2048, 7900)]
    return [
        *({"metric": "first_token_alone", "server": server, "arrivals": name} | both for name in alone),
        {"metric": "decode_alone", "server": server, "arrivals": alone[1]} | both,
        *({"metric": "served_gap_ms", "server": server, "batch": n, "mean": 3.5} for n in (1, 8, 32, 64)),
        *(
            {"metric": "load", "server": server, "arrivals": name} | both
            for name in ("5/s", "15/s", "30/s", "40/s", "400 at once")
        ),
    ]


def test_the_front_page_shows_what_is_measured_over_http():
    rows = [row for server in ("wisp", "vllm-0.26.0", "vllm-0.26.0 tuned") for row in served(server)]
    shown = readme_figures.figures(RECORDS | {"beside-vllm-served.json": {"commit": "abc", "rows": rows}})
    assert "first token, median (99th percentile) | 1 (4) / 1 (4) / 1 (4) / 1 (4) ms |" in shown
    assert "| 5,000 tokens/s; 1 (4) ms | 5,000 tokens/s; 1 (4) ms | [abc]" in shown
    assert "tuned, 1: 2.00" in shown


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_names_its_conditions(name):
    record = RECORDS[name]
    assert {"name", "commit", "command", "rows"} <= set(record)
    assert record.get("machine") or (record.get("gpu") and record.get("driver"))
    assert record["rows"]


def test_a_row_of_a_gpu_names_its_conditions():
    required = {"metric", "path", "shape", "weights", "kv", "batch", "context", "value"}
    rows = [row for record in OF_A_GPU.values() for row in record["rows"]]
    assert [
        row for row in rows if row.get("metric") in performance.TABLE_METRICS and not required <= set(row)
    ] == []


def record(*rows: dict, **more) -> dict[str, dict]:
    fixed = {
        "path": "general",
        "shape": "llama-3-8b",
        "weights": "bf16",
        "kv": "bf16",
        "batch": 8,
        "context": 512,
    }
    made = {"name": "made", "commit": "abc", "gpu": "NVIDIA H200", "driver": "580", "command": "bench"}
    return {"made.json": made | more | {"rows": [fixed | row for row in rows]}}


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"metric": "decode_step_ms", "value": 4.0, "peer": "vllm", "peer_value": 5.0}, "1.25 × vllm (5)"),
        (
            {"metric": "decode_step_ms", "value": 5.0, "peer": "vllm", "peer_value": 4.0},
            "**0.80 × vllm (4)**",
        ),
        (
            {"metric": "prefill_tokens_per_s", "value": 50e3, "peer": "vllm", "peer_value": 40e3},
            "| 1.25 × vllm (40,000)",
        ),
        (
            {"metric": "decode_step_ms", "value": 4.2, "floor": 3.5, "p10": 4.1, "p90": 4.3},
            "| 4.2 (4.1–4.3) | 3.5 | 1.20 |",
        ),
        ({"metric": "prefill_tokens_per_s", "value": 40e3, "floor": 50e3}, "| 40,000 | 50,000 | 1.25 |"),
        ({"metric": "first_token_ms", "value": 5.0, "cached": 7888, "context": 7916}, "7916, 7888 cached"),
        ({"metric": "of_a_new_kind", "value": 7.0, "clients": 8}, "of_a_new_kind"),
    ],
)
def test_a_row_shows_its_bound_and_its_baseline_and_losing_is_bold(row, text):
    assert text in performance.page(record(row))


def test_a_record_s_note_follows_each_table_of_its_rows():
    rows = [{"metric": "decode_step_ms", "value": float(batch), "batch": batch} for batch in (1, 8)]
    page = performance.page(record(*rows, note="of a version before"))
    assert page.count("- [made](../tests/bench/records/made.json): of a version before.") == 1
    assert "of a version" not in performance.page(record(*rows))


def test_memory_is_shown_as_predicted_and_measured():
    rows = [
        {"metric": "memory_predicted_bytes", "value": 100 << 30},
        {"metric": "memory_measured_bytes", "value": 101 << 30, "beyond_weights_and_kv_bytes": 1 << 30},
    ]
    assert "| 100.00 GiB | 101.00 GiB | +1.00 % | 1.00 GiB |" in performance.page(record(*rows))


def test_kernels_and_phases_get_tables_of_their_own():
    rows = [
        {"metric": "kernel_us", "value": 640.0, "phase": "qkv", "kernel": "linear", "launches": 32},
        {"metric": "kernel_gb_per_s", "value": 3900.0, "phase": "qkv"},
        {"metric": "start_phase_s", "value": 0.4, "phase": "import", "batch": 1, "context": 0},
        {"metric": "start_phase_s", "value": 0.9, "phase": "weights", "batch": 1, "context": 0},
    ]
    page = performance.page(record(*rows))
    assert "| qkv | linear | 32 | 640 | 20 | 3,900 |" in page
    assert "| model | import | weights | record |" in page
    assert "| llama-3-8b | 0.4 | 0.9 |" in page


def test_records_of_bench_are_read_by_the_page(tmp_path):
    from wisp_runtime.bench.record import Row, make_record, write_record

    row = Row("decode_step_ms", 4.0, "general", "llama-3-8b", "bf16", "bf16", 8, 512, lower_bound=3.5)
    made = make_record("decode", [row], device="cpu", command=["bench"], commit="abc")
    write_record(tmp_path / "decode.json", made)
    (read,) = performance.read_records(tmp_path).values()
    assert read == json.loads(json.dumps(made))
    assert "3.5" in performance.page({"decode.json": read})


def beside_vllm(server: str, first_ms: float) -> list[dict]:
    """Rows of one server in a record of tests/bench/peer/formats.py."""
    rows = [
        {"metric": "served_gap_ms", "server": server, "batch": batch, "mean": 2.0}
        for batch in quantization_figures.BATCHES
    ]
    rows += [
        {
            "metric": "first_token_alone",
            "server": server,
            "arrivals": f"alone, {tokens} tokens",
            "first_token_ms": {"mean": first_ms},
        }
        for tokens in quantization_figures.FIRST_TOKENS
    ]
    return [*rows, {"metric": quantization_figures.LAST, "server": server, "value": 50_000 / first_ms}]


def test_formats_beside_vllm_are_shown_once_both_were_measured_and_the_slower_is_bold():
    vllm = beside_vllm("vllm-0.26.0", 8.0)
    both = {"rows": [*vllm, *beside_vllm("wisp", 9.0)]}
    others = {name: content for name, content in RECORDS.items() if not name.startswith("beside-vllm-")}
    shown = quantization_figures.figures(
        others | {"beside-vllm-int4.json": both, "beside-vllm-mxfp4.json": {"rows": vllm}}
    )
    assert "| ms a token, 8 streams | 2.00 / 2.00 |" in shown
    assert "| first token of 2,048, ms | **9.0** / 8.0 |" in shown
    assert "| 32 prompts of 2,048 at once, tokens/s | **5,556** / 6,250 |" in shown
    assert "beside-vllm-mxfp4" not in shown


def test_the_same_tokens_of_other_engines_are_shown():
    row = {
        "model": "small",
        "weights": "int4",
        "engine": "vllm",
        "places": 320,
        "same": 318,
        "worst_nats": 0.0625,
    }
    shown = quantization_figures.figures(RECORDS | {"same-tokens.json": {"rows": [row]}})
    assert "| small | `int4` | vLLM 0.26.0 | 318 of 320 | 0.06 |" in shown
