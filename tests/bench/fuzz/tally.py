"""Counts of a run of hostile requests, and its record."""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from answer_checks import fault_of
from bodies import BODIES, QUERIES
from connection import Answer
from mutations import Case, endpoint_of
from target import Footprint

NOT_STORED = "resp_none"
KEPT_IDENTITIES = 3000
KNOWN = {*BODIES, *(endpoint_of(target) for _, target in QUERIES)}
WARM_SHARE = 0.2
"""Share of a run that fills caches, stores and pools, and is left out of the slope of memory."""


@dataclass(frozen=True)
class Sample:
    """What the server's processes held after so many requests."""

    requests: int
    seconds: float
    held: Footprint


@dataclass
class Tally:
    """Counts of a run.

    Attributes:
        answers: answers by endpoint and status; status 0: the client left before.
        left: clients that left, by stage.
        overloads: documented 503s.
        reconnects: connections that the server had closed between requests.
        faults: descriptions of wrong answers, with the numbers of their requests.
        samples: measurements of the server's processes.
        identities: ids of responses that may be stored, the latest last.
    """

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    overloads: int = 0
    reconnects: int = 0
    faults: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    identities: deque[str] = field(default_factory=lambda: deque([NOT_STORED], maxlen=KEPT_IDENTITIES))

    def add(self, index: int, case: Case, answer: Answer) -> None:
        """Count a request."""
        self.answers[case.path if case.path in KNOWN else "other", answer.status] += 1
        if case.stage != "stays":
            self.left[case.stage] += 1
        identity = answer.headers.get(b"x-request-id", b"")
        if identity.startswith(b"resp_") and case.path == "/v1/responses":
            self.identities.append(identity.decode())
        if fault := fault_of(case, answer):
            self.fail(index, case, f"{fault}: {bytes(answer.body[:300])!r}")
        elif answer.status >= 500:
            self.overloads += 1

    def fail(self, index: int, case: Case, fault: str) -> None:
        """Note a fault."""
        self.faults.append(f"request {index}: {case.method} {case.path}: {fault}")
        print(self.faults[-1], file=sys.stderr, flush=True)

    def identity(self, index: int) -> str:
        """Return one of the latest ids of responses."""
        return self.identities[-1 - index * 7919 % len(self.identities)]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of a record."""
        last = self.samples[-1]
        slope = {"metric": "memory, KiB each 1,000 requests", "of": "slope", "value": slope_kib(self.samples)}
        return [
            {"metric": "requests", "of": "all", "value": last.requests},
            {"metric": "requests", "of": "seconds", "value": round(last.seconds)},
            {"metric": "requests", "of": "wrong answers", "value": len(self.faults)},
            {"metric": "requests", "of": "documented 503", "value": self.overloads},
            *(
                {"metric": "requests", "of": f"clients that left: {stage}", "value": number}
                for stage, number in sorted(self.left.items())
            ),
            slope,
            *(_held(sample) for sample in self.samples),
            *(self._endpoint(path) for path in sorted({path for path, _ in self.answers})),
        ]

    def _endpoint(self, path: str) -> dict[str, Any]:
        """Return the answers of an endpoint; every endpoint's have the same columns."""
        statuses = sorted({status for _, status in self.answers})
        columns = {str(status) if status else "left": self.answers[path, status] for status in statuses}
        return {"metric": "answers", "of": path, **columns}


def _held(sample: Sample) -> dict[str, Any]:
    held = sample.held
    return {
        "metric": "held",
        "of": f"after {sample.requests}",
        "resident KiB": held.rss_kib,
        "threads": held.threads,
        "files": held.files,
    }


def slope_kib(samples: list[Sample]) -> float:
    """Return the growth of resident memory after the warm-up, in KiB each 1,000 requests: least squares."""
    begin = samples[-1].requests * WARM_SHARE
    kept = [(sample.requests, sample.held.rss_kib) for sample in samples if sample.requests >= begin]
    mean_x, mean_y = (sum(column) / len(kept) for column in zip(*kept, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in kept)
    return round(1000 * sum((x - mean_x) * (y - mean_y) for x, y in kept) / spread, 2) if spread else 0.0


def write(name: str, rows: list[dict[str, Any]], path: Path | None) -> None:
    """Write a record of ``rows``, to the standard output without a path."""
    from wisp_runtime.bench.record import make_record, write_record

    if path is None:
        print(*map(json.dumps, rows), sep="\n")
        return
    record = make_record(name, (), device="cpu", command=["python", *sys.argv], commit=None)
    write_record(path, record | {"rows": rows})
