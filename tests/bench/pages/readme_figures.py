"""Write the measured tables of README.md from the records in tests/bench/records/.

    python tests/bench/pages/readme_figures.py            writes them between their marks
    python tests/bench/pages/readme_figures.py --check    fails if README differs from the records

Every row names its record and the commit that was measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from performance import ROOT, read_records

README = ROOT / "README.md"
BEGIN, END = "<!-- figures: python tests/bench/pages/readme_figures.py -->", "<!-- figures end -->"
Records = Mapping[str, dict[str, Any]]

VLLM, SERVED = "vllm-in-process-llama-3-8b", "beside-vllm-served"
PREFILL, START = "prefill-llama-3-8b", "startup-llama-3-8b"
SERVERS = ("wisp", "vllm-0.26.0")
CPU, GATEWAY, CLUSTER, FAULTS = "cpu_engine", "gateway", "cluster", "faults"


def row_of(records: Records, name: str, /, **keys: Any) -> dict[str, Any]:
    """Return the one row of a record that has these keys.

    Raises:
        LookupError: no row has them, or several.
    """
    rows = [row for row in records[f"{name}.json"]["rows"] if keys.items() <= row.items()]
    if len(rows) != 1:
        raise LookupError(f"{name}.json: {len(rows)} rows with {keys}")
    return rows[0]


def value(records: Records, name: str, /, **keys: Any) -> Any:
    """Return the value of the one row that has these keys, or the row if it has none."""
    row = row_of(records, name, **keys)
    return row.get("value", row)


def cite(records: Records, *names: str) -> str:
    """Return links to records, each with the commit that was measured."""
    return ", ".join(
        f"[{records[f'{name}.json']['commit']}](tests/bench/records/{name}.json)" for name in names
    )


def joined(numbers: Iterable[float], digits: int = 2) -> str:
    """Return numbers between slashes."""
    return " / ".join(f"{number:.{digits}f}" for number in numbers)


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, ("---",) * len(heads), *rows)) + "\n"


def gpu_rows(records: Records) -> Iterator[tuple[str, ...]]:
    """Yield what is measured over HTTP, prefill, and a start."""
    yield from served_rows(records)
    prefill = value(records, PREFILL, metric="prefill_tokens_per_s", batch=64, context=512)
    many = value(records, VLLM, metric="prefill_tokens_per_s", batch=64)
    title = "64 prompts of 512 tokens, in process"
    yield title, f"{prefill:,.0f} tokens/s", f"{many:,.0f} tokens/s", cite(records, PREFILL, VLLM)
    starts = records[f"{START}.json"]["rows"][0]
    runs = [*starts["runs_s"], starts["uncounted_s"]]
    cached = value(records, VLLM, path="vllm-0.26.0, every cache warm")
    yield (
        "process start → first token, 16 GB in the page cache",
        f"{min(runs):.1f}–{max(runs):.1f} s",
        f"{cached:.0f} s, compiled before",
        cite(records, START, VLLM),
    )


def served_rows(records: Records) -> Iterator[tuple[str, ...]]:
    """Yield what a client sees: means alone and side by side; median and 99th percentile under load."""
    link = cite(records, SERVED)
    alone = [f"alone, {prompt} tokens" for prompt in (128, 512, 2048, 7900)]
    rates = ("5/s", "15/s", "30/s", "40/s")

    def of(metric: str, arrivals: Iterable[str], key: str) -> list[list[dict[str, float]]]:
        keys = [{"server": server, "metric": metric} for server in SERVERS]
        return [[value(records, SERVED, arrivals=name, **own)[key] for name in arrivals] for own in keys]

    ours, theirs = (
        joined((row["mean"] for row in own), 1) for own in of("first_token_alone", alone, "first_token_ms")
    )
    title = "first token of 128 / 512 / 2,048 / 7,900 tokens over HTTP, mean"
    yield title, f"{ours} ms", f"{theirs} ms", link
    ours, theirs = (joined(gap["mean"] for gap in gaps_of(records, server)) for server in SERVERS)
    title = "a token of 1 / 8 / 32 / 64 streams over HTTP, 512 tokens each, mean"
    yield title, f"{ours} ms", f"{theirs} ms{tuned_gap(records)}", link
    for name, key, digits in (
        ("first token", "first_token_ms", 0),
        ("time per token", "time_per_token_ms", 1),
    ):
        ours, theirs = (
            " / ".join(f"{row['p50']:.{digits}f} ({row['p99']:.{digits}f})" for row in own)
            for own in of("load", rates, key)
        )
        title = f"at 5 / 15 / 30 / 40 requests/s: {name}, median (99th percentile)"
        yield title, f"{ours} ms", f"{theirs} ms", link
    burst = [row_of(records, SERVED, server=own, metric="load", arrivals="400 at once") for own in SERVERS]
    title = "400 requests at once: tokens/s; first token, median (99th percentile)"
    ours, theirs = (
        f"{row['output_tokens_per_s']:,.0f} tokens/s; "
        f"{row['first_token_ms']['p50']:,.0f} ({row['first_token_ms']['p99']:,.0f}) ms"
        for row in burst
    )
    yield title, ours, theirs, link


def tuned_gap(records: Records) -> str:
    """Return the time per token of one stream of vLLM with tuned kernels."""
    tuned = value(records, SERVED, metric="decode_alone", server="vllm-0.26.0 tuned")["time_per_token_ms"]
    return f"; tuned, 1: {tuned['mean']:.2f}"


def gaps_of(records: Records, server: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of gaps between tokens of concurrent streams."""
    for batch in (1, 8, 32, 64):
        yield row_of(records, SERVED, metric="served_gap_ms", server=server, batch=batch)


def cpu_rows(records: Records) -> Iterator[tuple[str, ...]]:
    """Yield what two shared CPU cores do."""
    short, long = (row_of(records, CPU, threads=1, batch=1, context=context) for context in (128, 1024))
    step = f"SmolLM2-135M's decode step, one thread, context 128: {short['value']:.0f} ms, over the fastest"
    reads = f"{short['over_floor']:.2f}; {long['over_floor']:.2f}"
    yield f"{step} read of the weights; at context 1,024", reads, "≤ 1.5", cite(records, CPU)
    added = [value(records, GATEWAY, metric=f"first_token_added_{part}_ms") for part in ("p50", "p99")]
    cost = value(records, GATEWAY, metric="cpu_us_per_token", path="gateway")
    title = (
        "gateway, 128 streams × 50 tokens/s: added to the first token, median; 99th percentile; CPU a token"
    )
    both = f"{joined(added, 1).replace(' / ', '; ')} ms; {cost:.0f} µs"
    yield title, both, "≤ 5 ms; ≤ 20 µs", cite(records, GATEWAY)
    first_s = value(records, CLUSTER, name="held_stream")["first_token_s"]
    title = "SmolLM2-135M at zero → first token of a held stream, one-node cluster"
    yield title, f"{first_s:.1f} s", "–", cite(records, CLUSTER)
    loads = [row for row in records[f"{CLUSTER}.json"]["rows"] if row["name"] == "load"]
    lost, sent = (sum(row[key] for row in loads) for key in ("lost", "sent"))
    title = "requests lost on it while pods, gateways, the operator and the API server die"
    yield title, f"{lost} of {sent:,}", "0", cite(records, CLUSTER)
    rows = records[f"{FAULTS}.json"]["rows"]
    lost, sent = (sum(row[key] for row in rows) for key in ("lost", "sent"))
    title = f"the same under {len(rows)} faults of processes, rights, names and rollouts, at 30 requests/s"
    yield title, f"{lost} of {sent:,}", "0", cite(records, FAULTS)


def figures(records: Records) -> str:
    """Return the text between the marks."""
    gpu = table(("Llama-3-8B shape, H200", "Wisp", "vLLM 0.26, defaults", "measured at"), gpu_rows(records))
    cpu = table(("two shared CPU cores", "measured", "aim", "measured at"), cpu_rows(records))
    return f"{BEGIN}\n{gpu}\n{cpu}{END}"


def main() -> int:
    """Write the tables, or check them; return the exit status."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    expected = before + figures(read_records()) + after
    if sys.argv[1:] == ["--check"]:
        print("current" if expected == text else f"{README} differs from the records", file=sys.stderr)
        return int(expected != text)
    README.write_text(expected, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
