"""Write docs/performance.md from the records in tests/bench/records/.

    python tests/bench/performance.py            writes the page
    python tests/bench/performance.py --check    fails if the page is not what the records give

Every number on the page is one of a record, linked beside it; where another program is faster, it says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORDS, PAGE = ROOT / "tests/bench/records", ROOT / "docs/performance.md"
PICTURES = ROOT / "docs/images"  # that `wisp-runtime profile --svg` drew, under the names of their records

INTRODUCTION = """\
# How fast

Generated from [`tests/bench/records/`](../tests/bench/records/) by `python tests/bench/performance.py`:
every number is one of a record, which names the commit, the machine and the command that gives it again.
Medians; in brackets where a tenth of the measurements lie below and above.

- **floor**: the least that the machine's measured ceilings allow
  ([how](../runtime/wisp_runtime/bench/roofline.py)); of tokens a second, the most.
- **beside**: another program on the same kind of GPU at the same shape
  ([how it was run](../tests/bench/peer/README.md)). More than 1.00 × is faster than it; **bold** is where
  we lose. Cards of a kind differ by 2 to 6 %, so what is closer than that is a draw.
- **by**: `persistent` is a decode step in one launch, `general` a launch an op, both ours, as the record's
  commit chose (notes say where it is chosen otherwise now); `transformers, …` ran beside them.
- A step's kernels are timed alone, each between two events: their sum is more than the step takes where they
  overlap (decode), and less where the card grows hot (prefill).
- In gates and parity, **parted** counts answers that differ, **gap** is the largest difference of the two
  logits where they do, and **noise** what bf16 does to such a difference; *rounded* is float32 rounded to
  bf16 between layers.
"""
NO_GPU_YET = "No record of a GPU yet: `tests/bench/gpu_session.sh bench` makes them.\n"


@dataclass(frozen=True)
class Family:
    """Rows that share a table.

    Attributes:
        metric: of the rows.
        title: of the table.
        unit: of its numbers.
        more_is_better: of its numbers.
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
    Family("start_to_first_token_s", "From the process's start to the first streamed token", "s"),
)
MEMORY = ("memory_predicted_bytes", "memory_measured_bytes")
PHASES, KERNELS = "start_phase_s", ("kernel_us", "kernel_gb_per_s")
TOLD = {family.metric for family in FAMILIES} | {*MEMORY, PHASES, *KERNELS}


@dataclass(frozen=True)
class Found:
    """A row and the record it is in."""

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
        records: by the name of their file.
    """
    found = [Found(row, record, file) for file, record in sorted(records.items()) for row in record["rows"]]
    cards = sorted({str(one.record["gpu"]) for one in found if one.record.get("gpu")})
    parts = [INTRODUCTION, *([] if cards else [NO_GPU_YET])]
    for card in cards:
        parts += _card(card, [one for one in found if one.record.get("gpu") == card])
    parts.append("## Without a GPU\n")
    parts += _rest([one for one in found if not one.record.get("gpu")])
    parts.append("## The records\n")
    parts.append(_table(("record", "commit", "where", "command"), map(_conditions, sorted(records.items()))))
    return "\n".join(parts)


def _card(card: str, found: list[Found]) -> Iterator[str]:
    drivers = ", ".join(sorted({str(one.record.get("driver", "unknown")) for one in found}))
    yield f"## {card} (driver {drivers})\n"
    for family in FAMILIES:
        rows = [one for one in found if one["metric"] == family.metric]
        if rows:
            yield f"### {family.title}, {family.unit}\n"
            heads = (
                "model",
                "weights, KV",
                "context",
                "batch",
                "by",
                family.unit,
                "floor",
                "× floor",
                "beside",
                "record",
            )
            yield _table(heads, (_compared(one, family) for one in sorted(rows, key=_place)))
            yield from _notes(rows)
    yield from _start_phases([one for one in found if one["metric"] == PHASES])
    yield from _memory([one for one in found if one["metric"] in MEMORY])
    yield from _kernels([one for one in found if one["metric"] in KERNELS])
    yield from _rest([one for one in found if one["metric"] not in TOLD])


def _notes(found: list[Found]) -> Iterator[str]:
    """What else must be known of the records that the rows above are from."""
    notes = {one.link: one.record["note"] for one in found if one.record.get("note")}
    if notes:
        yield "\n".join(f"- {link}: {note}." for link, note in sorted(notes.items())) + "\n"


def _place(one: Found) -> tuple[Any, ...]:
    is_ours = one["path"] in ("general", "persistent", "reference")
    return (
        one["shape"],
        one["weights"],
        one["context"],
        one["cached"] or 0,
        one["batch"],
        not is_ours,
        str(one["path"]),
    )


def _compared(one: Found, family: Family) -> Iterator[str]:
    yield f"{one['shape']}"
    yield f"{one['weights']}, {one['kv']}"
    yield f"{one['context']}" + (f", {one['cached']} cached" if one["cached"] else "")
    yield f"{one['batch']}"
    yield f"{one['path']}"
    spread = f" ({number(one['p10'])}–{number(one['p90'])})" if one["p10"] is not None else ""
    yield number(one["value"]) + spread
    floor = one["floor"]
    yield number(floor) if floor is not None else ""
    yield f"{_share(one['value'], floor, family):.2f}" if floor else ""
    yield _beside(one, family)
    yield one.link


def _share(value: float, floor: float, family: Family) -> float:
    return floor / value if family.more_is_better else value / floor


def _beside(one: Found, family: Family) -> str:
    if one["peer_value"] is None:
        return ""
    ratio = 1 / _share(one["value"], one["peer_value"], family)
    said = f"{ratio:.2f} × {one['peer']} ({number(one['peer_value'])})"
    return said if ratio >= 1 else f"**{said}**"


def _start_phases(found: list[Found]) -> Iterator[str]:
    if not found:
        return
    yield "### A start, phase by phase, s\n"
    starts = sorted({(str(one["shape"]), one.file) for one in found})
    names = list(dict.fromkeys(str(one["phase"]) for one in found))
    rows = []
    for shape, file in starts:
        own = {one["phase"]: one for one in found if one["shape"] == shape and one.file == file}
        cells = [number(own[name]["value"]) if name in own else "" for name in names]
        rows.append((shape, *cells, next(iter(own.values())).link))
    yield _table(("model", *names, "record"), rows)


def _memory(found: list[Found]) -> Iterator[str]:
    measured = [one for one in found if one["metric"] == "memory_measured_bytes"]
    if not measured:
        return
    yield "### GPU memory: what the ledger predicts, what the driver counts\n"
    rows = []
    for one in sorted(measured, key=_place):
        predicted = next(
            other["value"]
            for other in found
            if other["metric"] == "memory_predicted_bytes"
            and other.file == one.file
            and _place(other) == _place(one)
        )
        beyond = one["beyond_weights_and_kv_bytes"]
        cells = [one["shape"], one["batch"], one["context"], gib(predicted), gib(one["value"])]
        cells += [
            f"{100 * (one['value'] / predicted - 1):+.2f} %",
            gib(beyond) if beyond is not None else "",
            one.link,
        ]
        rows.append(map(str, cells))
    heads = (
        "model",
        "batch",
        "context",
        "predicted",
        "measured",
        "off by",
        "beyond weights and KV",
        "record",
    )
    yield _table(heads, rows)


def _kernels(found: list[Found]) -> Iterator[str]:
    timed = [one for one in found if one["metric"] == "kernel_us"]
    if not timed:
        return
    yield "### Kernels of a step, each alone between two events\n"
    for name in dict.fromkeys(one.file.removesuffix(".json") for one in timed):
        if (PICTURES / f"{name}.svg").is_file():
            yield f"![{name}: the kernels of a step, one after the other](images/{name}.svg)\n"
    speeds = {
        (one.file, *_place(one), one["phase"]): one["value"] for one in found if one["metric"] == KERNELS[1]
    }
    rows = []
    for one in timed:
        speed = speeds.pop((one.file, *_place(one), one["phase"]), None)
        each = one["value"] / max(one["launches"], 1)
        cells = [one["shape"], one["batch"], one["context"], one["phase"], one["kernel"], one["launches"]]
        cells += [number(one["value"]), number(each), "" if speed is None else number(speed), one.link]
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


def _rest(found: list[Found]) -> Iterator[str]:
    """Tables of what has none of its own: every record's rows under their own keys."""
    for file in dict.fromkeys(one.file for one in found):
        own = [one for one in found if one.file == file]
        yield f"### {own[0].record['name'].replace('_', ' ')}: {own[0].link}\n"
        for keys in dict.fromkeys(tuple(one.row) for one in own):
            rows = [[_cell(one[key]) for key in keys] for one in own if tuple(one.row) == keys]
            yield _table((key.replace("_", " ") for key in keys), rows)
        if note := own[0].record.get("note"):
            yield f"{note}\n"


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


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(one) for one in value)
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def number(value: float) -> str:
    """Return a number with as many digits as it deserves."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def gib(size_bytes: float) -> str:
    """Return bytes as GiB."""
    return f"{size_bytes / (1 << 30):.2f} GiB"


def read_records(folder: Path = RECORDS) -> dict[str, dict[str, Any]]:
    """Read every record, by the name of its file."""
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def main() -> int:
    """Write the page, or check it; return the exit status."""
    wanted = page(read_records())
    if sys.argv[1:] == ["--check"]:
        is_current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted
        print("current" if is_current else f"{PAGE} is not what the records give", file=sys.stderr)
        return 0 if is_current else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
