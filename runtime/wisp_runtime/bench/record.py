"""Records of benchmarks: rows of numbers, and the conditions of the run.

``tests/bench/records/`` keeps their JSON, and ``docs/performance.md`` is generated from it.
"""

from __future__ import annotations

import json
import platform
import shlex
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from wisp_runtime.bench import nvml

_DIGITS = 5
_OUTPUT_OPTIONS = ("--json", "--svg", "--record", "--name", "--commit", "--api-key")


class Recordable(Protocol):
    """A row of a record."""

    def to_dict(self) -> dict[str, object]:
        """Return the row as JSON."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured number and its conditions.

    Attributes:
        metric: name with its unit: ``decode_step_ms``, ``first_token_ms``, ``prefill_tokens_per_s``,
            ``start_to_first_token_s``, ``memory_predicted_bytes``, ``memory_measured_bytes``.
        value: the number; a median where there were several.
        path: decode path: ``general``, ``persistent`` (the persistent decode kernel), ``reference`` (the
            CPU), or the name of another program.
        shape: name of the model.
        weights, kv: formats in memory.
        batch: sequences in a step.
        context: tokens of each sequence before the measured step (of a prompt: its tokens).
        lower_bound: roofline bound from the machine's measured ceilings; ``floor`` in JSON.
        baseline, baseline_value: another program on the same GPU and its number; ``peer`` in JSON.
        more: further fields of a metric: ``p10``, ``p90``, ``cached``, ``phase``.
    """

    metric: str
    value: float
    path: str
    shape: str
    weights: str
    kv: str
    batch: int = 1
    context: int = 0
    lower_bound: float | None = None
    baseline: str | None = None
    baseline_value: float | None = None
    more: dict[str, object] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the row as JSON of a record; unknown values are left out."""
        row: dict[str, object] = {
            "metric": self.metric,
            "path": self.path,
            "shape": self.shape,
            "weights": self.weights,
            "kv": self.kv,
            "batch": self.batch,
            "context": self.context,
            "value": self.value,
            "peer": self.baseline,
            "peer_value": self.baseline_value,
            "floor": self.lower_bound,
        } | self.more
        return {key: _rounded(value) for key, value in row.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 10th and 90th percentile and mean of some numbers."""

    median: float
    p10: float
    p90: float
    mean: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one number."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], values[0])
        tenths = statistics.quantiles(values, n=10, method="inclusive")
        return cls(statistics.median(values), tenths[0], tenths[-1], statistics.fmean(values))

    def to_dict(self) -> dict[str, object]:
        """Return percentiles and mean as fields of a row."""
        return {"p10": self.p10, "p90": self.p90, "mean": self.mean}


def make_record(
    name: str, rows: Iterable[Recordable], *, device: str, command: Sequence[str], commit: str | None
) -> dict[str, object]:
    """Make a record of rows, with the conditions of this run.

    Args:
        name: name of the record.
        rows: measured rows.
        device: ``cuda`` or ``cpu``.
        command: command line that was typed; :func:`shown_command` shortens it.
        commit: commit of the code; None: git's HEAD.
    """
    where: dict[str, object] = {"gpu": None, "driver": None, "machine": _machine()}
    if device == "cuda" and (card := nvml.card()):
        where |= {"gpu": card.name, "driver": card.driver}
    return {
        "name": name,
        "commit": commit or _commit(),
        **{key: value for key, value in where.items() if value},
        "python": platform.python_version(),
        "command": shown_command(command),
        "rows": [row.to_dict() for row in rows],
    }


def shown_command(command: Sequence[str]) -> str:
    """Return a command as a stranger can repeat it.

    Without options that only say where the record goes (or a secret), and with the last part of each
    absolute path instead of a folder of this machine.
    """
    shown, words = list[str](), iter(command)
    for word in words:
        option, is_joined, _ = word.partition("=")
        if option not in _OUTPUT_OPTIONS:
            shown.append(_without_folders(word))
        elif not is_joined:
            next(words, None)
    return shlex.join(shown)


def _without_folders(word: str) -> str:
    before, separator, path = word.rpartition("=")
    return f"{before}{separator}{Path(path).name}" if path.startswith("/") and len(path) > 1 else word


def write_record(path: Path, record: dict[str, object]) -> None:
    """Write a record as JSON, a row a line."""
    rows = record["rows"]
    assert isinstance(rows, list)
    others = {key: value for key, value in record.items() if key != "rows"}
    head = json.dumps({**others, "rows": []}, indent=1, ensure_ascii=False)
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head.removesuffix("[]\n}") + f"[\n{lines}\n ]\n}}\n", encoding="utf-8")


def _rounded(value: object) -> object:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(named, platform.processor() or 'unknown')}, {platform.system()} {platform.release()}"
