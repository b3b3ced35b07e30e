"""Rows of a load test: percentiles of first tokens and of time per token, errors, throughput."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from wisp_runtime.bench.load.client import ClientCost
from wisp_runtime.bench.load.stream import Streamed

_SHOWN_ERRORS = 3


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Mean and percentiles of some numbers."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles | None:
        """Summarize numbers; None if there are none. A percentile is the nearest rank."""
        if not values:
            return None
        ordered = sorted(values)
        ranks = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.9, 0.99))
        return cls(statistics.fmean(ordered), *ranks)

    def to_dict(self) -> dict[str, float]:
        """Return JSON of a record."""
        values = {"mean": self.mean, "p50": self.p50, "p90": self.p90, "p99": self.p99}
        return {key: float(f"{value:.4g}") for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class LoadRow:
    """Result of one stage.

    Attributes:
        server: name of the server in the record.
        arrivals: name of the stage.
        requests, failed: number of requests, and of those without a complete answer.
        errors: the most frequent failures.
        seconds: from the first request until the last answer's end.
        output_tokens: completion tokens of all answers.
        first_token_ms, time_per_token_ms: percentiles of complete answers; None without any.
        late_ms, lag_ms: lateness of the client's own sends and of its event loop.
        cpu_share: the client's share of a CPU.
    """

    server: str
    arrivals: str
    requests: int
    failed: int
    seconds: float
    output_tokens: int
    first_token_ms: Percentiles | None
    time_per_token_ms: Percentiles | None
    late_ms: Percentiles
    lag_ms: Percentiles | None
    cpu_share: float
    errors: tuple[str, ...] = field(default=())

    @property
    def output_tokens_per_s(self) -> float:
        """Completion tokens a second of the stage."""
        return self.output_tokens / self.seconds

    def to_dict(self) -> dict[str, object]:
        """Return the row as JSON of a record."""
        row: dict[str, object] = {
            "metric": "load",
            "server": self.server,
            "arrivals": self.arrivals,
            "requests": self.requests,
            "failed": self.failed,
            "seconds": round(self.seconds, 2),
            "output_tokens": self.output_tokens,
            "output_tokens_per_s": round(self.output_tokens_per_s, 1),
            "first_token_ms": self.first_token_ms.to_dict() if self.first_token_ms else None,
            "time_per_token_ms": self.time_per_token_ms.to_dict() if self.time_per_token_ms else None,
            "client_late_p99_ms": round(self.late_ms.p99, 3),
            "client_lag_p99_ms": round(self.lag_ms.p99, 3) if self.lag_ms else None,
            "client_cpu_percent": round(100 * self.cpu_share, 1),
        }
        if self.errors:
            row["errors"] = list(self.errors)
        return {key: value for key, value in row.items() if value is not None}


def summarize(server: str, arrivals: str, streams: Sequence[Streamed], cost: ClientCost) -> LoadRow:
    """Return the row of a stage: failed requests count as such, and in no percentile."""
    complete = [stream for stream in streams if stream.error is None]
    failures = Counter(stream.error for stream in streams if stream.error is not None)
    ends = [stream.last_s for stream in streams if stream.last_s is not None]
    began_s = min(stream.began_s for stream in streams)
    firsts = [stream.first_token_ms for stream in complete]
    each = [stream.time_per_token_ms for stream in complete]
    late = Percentiles.of([1e3 * (stream.began_s - stream.planned_s) for stream in streams])
    assert late is not None
    return LoadRow(
        server,
        arrivals,
        len(streams),
        len(streams) - len(complete),
        max(ends, default=began_s + 1e-9) - began_s,
        sum(stream.tokens for stream in complete),
        Percentiles.of([value for value in firsts if value is not None]),
        Percentiles.of([value for value in each if value is not None]),
        late,
        Percentiles.of(cost.lags_ms),
        cost.cpu_share,
        tuple(f"{count} x {text}" for text, count in failures.most_common(_SHOWN_ERRORS)),
    )


def show(row: LoadRow) -> str:
    """Return one line for the terminal."""
    first, each = (
        f"{spread.p50:.1f} / {spread.p90:.1f} / {spread.p99:.1f} (mean {spread.mean:.2f})"
        if spread
        else "none"
        for spread in (row.first_token_ms, row.time_per_token_ms)
    )
    lag = f"{row.lag_ms.p99:.1f}" if row.lag_ms else "-"
    line = (
        f"{row.server}  {row.arrivals}  {row.requests} requests, {row.failed} failed, {row.seconds:.1f} s  "
        f"first token ms p50/p90/p99 {first}  time per token ms {each}  "
        f"{row.output_tokens_per_s:,.0f} tokens/s  "
        f"[client: late p99 {row.late_ms.p99:.1f} ms, lag p99 {lag} ms, CPU {100 * row.cpu_share:.0f} %]"
    )
    return "\n".join([line, *(f"  failed: {error}" for error in row.errors)])
