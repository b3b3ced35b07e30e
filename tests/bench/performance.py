"""Write docs/performance.md from the records in tests/bench/records/.

    python tests/bench/performance.py            writes the page
    python tests/bench/performance.py --check    fails if the page differs from the records

Every number on the page is from a linked record; where another program is faster, its ratio is bold.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORDS, PAGE = ROOT / "tests/bench/records", ROOT / "docs/performance.md"
CHARTS = ROOT / "docs/images"  # output of `wisp-runtime profile --svg`, under the names of their records

INTRODUCTION = """\
# How fast

Generated from [`tests/bench/records/`](../tests/bench/records/) by `python tests/bench/performance.py`:
every number is from a record, which names commit, machine and command. Medians; 10th and 90th percentile in
brackets.

- **bound**: roofline lower bound from the machine's measured ceilings
  ([source](../runtime/wisp_runtime/bench/roofline.py)); for tokens a second, the upper bound.
- **baseline**: another program on the same kind of GPU at the same shape
  ([commands](../tests/bench/baselines/README.md)). More than 1.00 × means that Wisp is faster; **bold** means
  that it is slower. Cards of a kind differ by 2 to 6 %, so smaller differences are a tie.
- **by**: `persistent` is the persistent decode kernel, `general` a kernel an op, both Wisp's, as the record's
  commit chose (notes name the rows for which that has changed); `transformers, …` ran in the same call.
- A step's kernels are timed alone, each between two events: their sum exceeds the step's time where they
  overlap (decode), and falls below it where the card grows hot (prefill).
- In gates and parity, **parted** counts sequences that differ, **gap** is the largest difference of the two
  logits where they do, and **noise** the effect of bf16 on such a difference; *rounded* is float32 rounded to
  bf16 between layers.
"""
NO_GPU_YET = "No record of a GPU yet: `tests/bench/gpu_session.sh bench` makes them.\n"


@dataclass(frozen=True)
class Family:
    """Rows that share a table.

    Attributes:
        metric: metric of the rows.
        title: title of the table.
        unit: unit of its numbers.
        more_is_better: whether higher numbers are better.
    """

    metric: str
    title: str
    unit: str
    more_is_better: bool = False


FAMILIES = (
    Family("decode_step_ms", "A decode step, as served", "ms"),
    Family("first_token_ms", "From a request to its first token, on an idle engine", "ms"),
    Family("prefill_tokens_per_s", "Prompts computed, many at once", "tokens/s", more_is_better=True),
    Family("served_gap_ms", "Between two tokens of a stream, over HTTP, all clients streaming", "ms"),
    Family("served_first_token_ms", "To the first token over HTTP, all clients arriving at once", "ms"),
    Family("served_tokens_per_s", "Served over HTTP, all clients together", "tokens/s", more_is_better=True),
    Family("served_prompt_tokens_per_s", "Prompts over HTTP, all at once", "tokens/s", more_is_better=True),
    Family("start_to_first_token_s", "From the process's start to the first streamed token", "s"),
)
MEMORY = ("memory_predicted_bytes", "memory_measured_bytes")
PHASES, KERNELS = "start_phase_s", ("kernel_us", "kernel_gb_per_s")
TABLE_METRICS = {family.metric for family in FAMILIES} | {*MEMORY, PHASES, *KERNELS}


@dataclass(frozen=True)
class RecordRow:
    """A row and its record."""

    row: dict[str, Any]
    record: dict[str, Any]
    file: str

    def __getitem__(self, key: str) -> Any:
        return self.row.get(key)

    @property
    def link(self) -> str:
        """The record, as a cell of a table."""
        return f"[{self.file.removesuffix('.json')}](../tests/bench/records/{self.file})"


def page(records: dict[str, dict[str, Any]]) -> str:
    """Return the page.

    Args:
        records: records by file name.
    """
    entries = [
        RecordRow(row, record, file) for file, record in sorted(records.items()) for row in record["rows"]
    ]
    cards = sorted({str(entry.record["gpu"]) for entry in entries if entry.record.get("gpu")})
    parts = [INTRODUCTION, *([] if cards else [NO_GPU_YET])]
    for card in cards:
        parts += _card(card, [entry for entry in entries if entry.record.get("gpu") == card])
    parts.append("## Without a GPU\n")
    parts += _rest([entry for entry in entries if not entry.record.get("gpu")])
    parts.append("## The records\n")
    parts.append(_table(("record", "commit", "where", "command"), map(_conditions, sorted(records.items()))))
    return "\n".join(parts)


def _card(card: str, entries: list[RecordRow]) -> Iterator[str]:
    drivers = ", ".join(sorted({str(entry.record.get("driver", "unknown")) for entry in entries}))
    yield f"## {card} (driver {drivers})\n"
    for family in FAMILIES:
        rows = [entry for entry in entries if entry["metric"] == family.metric]
        if rows:
            yield f"### {family.title}, {family.unit}\n"
            heads = (
                "model",
                "weights, KV",
                "context",
                "batch",
                "by",
                family.unit,
                "bound",
                "× bound",
                "baseline",
                "record",
            )
            yield _table(heads, (_compared(entry, family) for entry in sorted(rows, key=_sort_key)))
            yield from _notes(rows)
    yield from _start_phases([entry for entry in entries if entry["metric"] == PHASES])
    yield from _memory([entry for entry in entries if entry["metric"] in MEMORY])
    yield from _kernels([entry for entry in entries if entry["metric"] in KERNELS])
    yield from _rest([entry for entry in entries if entry["metric"] not in TABLE_METRICS])


def _notes(entries: list[RecordRow]) -> Iterator[str]:
    """Yield the notes of the records of these rows."""
    notes = {entry.link: entry.record["note"] for entry in entries if entry.record.get("note")}
    if notes:
        lines = (_wrapped(f"- {link}: {note}.", "  ") for link, note in sorted(notes.items()))
        yield "\n".join(lines) + "\n"


def _sort_key(entry: RecordRow) -> tuple[Any, ...]:
    is_ours = entry["path"] in ("general", "persistent", "reference")
    return (
        entry["shape"],
        entry["weights"],
        entry["context"],
        entry["cached"] or 0,
        entry["batch"],
        not is_ours,
        str(entry["path"]),
    )


def _compared(entry: RecordRow, family: Family) -> Iterator[str]:
    yield f"{entry['shape']}"
    yield f"{entry['weights']}, {entry['kv']}"
    yield f"{entry['context']}" + (f", {entry['cached']} cached" if entry["cached"] else "")
    yield f"{entry['batch']}"
    yield f"{entry['path']}"
    spread = f" ({number(entry['p10'])}–{number(entry['p90'])})" if entry["p10"] is not None else ""
    yield number(entry["value"]) + spread
    bound = entry["floor"]
    yield number(bound) if bound is not None else ""
    yield f"{_ratio(entry['value'], bound, family):.2f}" if bound else ""
    yield _baseline(entry, family)
    yield entry.link


def _ratio(value: float, bound: float, family: Family) -> float:
    return bound / value if family.more_is_better else value / bound


def _baseline(entry: RecordRow, family: Family) -> str:
    if entry["peer_value"] is None:
        return ""
    ratio = 1 / _ratio(entry["value"], entry["peer_value"], family)
    text = f"{ratio:.2f} × {entry['peer']} ({number(entry['peer_value'])})"
    return text if ratio >= 1 else f"**{text}**"


def _start_phases(entries: list[RecordRow]) -> Iterator[str]:
    if not entries:
        return
    yield "### A start, phase by phase, s\n"
    starts = sorted({(str(entry["shape"]), entry.file) for entry in entries})
    names = list(dict.fromkeys(str(entry["phase"]) for entry in entries))
    rows = []
    for shape, file in starts:
        own = {entry["phase"]: entry for entry in entries if entry["shape"] == shape and entry.file == file}
        cells = [number(own[name]["value"]) if name in own else "" for name in names]
        rows.append((shape, *cells, next(iter(own.values())).link))
    yield _table(("model", *names, "record"), rows)


def _memory(entries: list[RecordRow]) -> Iterator[str]:
    measured = [entry for entry in entries if entry["metric"] == "memory_measured_bytes"]
    if not measured:
        return
    yield "### GPU memory: the ledger's prediction and the driver's count\n"
    rows = []
    for entry in sorted(measured, key=_sort_key):
        predicted = next(
            other["value"]
            for other in entries
            if other["metric"] == "memory_predicted_bytes"
            and other.file == entry.file
            and _sort_key(other) == _sort_key(entry)
        )
        beyond = entry["beyond_weights_and_kv_bytes"]
        held = f"{entry['weights']}, {entry['kv']}"
        cells = [entry["shape"], held, entry["batch"], entry["context"], gib(predicted), gib(entry["value"])]
        cells += [
            f"{100 * (entry['value'] / predicted - 1):+.2f} %",
            gib(beyond) if beyond is not None else "",
            entry.link,
        ]
        rows.append(map(str, cells))
    heads = (
        "model",
        "weights, KV",
        "batch",
        "context",
        "predicted",
        "measured",
        "off by",
        "beyond weights and KV",
        "record",
    )
    yield _table(heads, rows)


def _kernels(entries: list[RecordRow]) -> Iterator[str]:
    timed = [entry for entry in entries if entry["metric"] == "kernel_us"]
    if not timed:
        return
    yield "### Kernels of a step, each alone between two events\n"
    for name in dict.fromkeys(entry.file.removesuffix(".json") for entry in timed):
        if (CHARTS / f"{name}.svg").is_file():
            yield f"![{name}: the kernels of a step in order](images/{name}.svg)\n"
    speeds = {
        (entry.file, *_sort_key(entry), entry["phase"]): entry["value"]
        for entry in entries
        if entry["metric"] == KERNELS[1]
    }
    rows = []
    for entry in timed:
        speed = speeds.pop((entry.file, *_sort_key(entry), entry["phase"]), None)
        each = entry["value"] / max(entry["launches"], 1)
        cells = [
            entry["shape"],
            entry["batch"],
            entry["context"],
            entry["phase"],
            entry["kernel"],
            entry["launches"],
        ]
        cells += [number(entry["value"]), number(each), "" if speed is None else number(speed), entry.link]
        rows.append(map(str, cells))
    heads = (
        "model",
        "batch",
        "context",
        "phase",
        "kernel",
        "launches",
        "µs a step",
        "µs each",
        "GB/s of the phase",
        "record",
    )
    yield _table(heads, rows)


def _rest(entries: list[RecordRow]) -> Iterator[str]:
    """Yield tables of metrics without one of their own: each record's rows under their own keys."""
    for file in dict.fromkeys(entry.file for entry in entries):
        own = [entry for entry in entries if entry.file == file]
        yield f"### {own[0].record['name'].replace('_', ' ')}: {own[0].link}\n"
        for keys in dict.fromkeys(tuple(entry.row) for entry in own):
            rows = [[_cell(entry[key]) for key in keys] for entry in own if tuple(entry.row) == keys]
            yield _table((key.replace("_", " ") for key in keys), rows)
        if note := own[0].record.get("note"):
            yield _wrapped(note) + "\n"


def _conditions(entry: tuple[str, dict[str, Any]]) -> Iterator[str]:
    file, record = entry
    yield f"[{record['name']}](../tests/bench/records/{file})"
    yield f"{record['commit']}"
    driver = f", driver {record['driver']}" if record.get("driver") else ""
    yield f"{record['gpu']}{driver}" if record.get("gpu") else str(record.get("machine", "unknown"))
    yield f"`{record['command']}`"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [tuple(heads), *map(tuple, rows)]
    lines.insert(1, ("---",) * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    """Wrap prose at 120 columns; links keep their lines."""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(entry) for entry in value)
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def number(value: float) -> str:
    """Return a number with three significant digits, or all of an integer."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def gib(size_bytes: float) -> str:
    """Return bytes as GiB."""
    return f"{size_bytes / (1 << 30):.2f} GiB"


def read_records(folder: Path = RECORDS) -> dict[str, dict[str, Any]]:
    """Read every record, by file name."""
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def main() -> int:
    """Write the page, or check it; return the exit status."""
    expected = page(read_records())
    if sys.argv[1:] == ["--check"]:
        is_current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == expected
        print("current" if is_current else f"{PAGE} differs from the records", file=sys.stderr)
        return 0 if is_current else 1
    PAGE.write_text(expected, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
