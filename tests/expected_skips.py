"""Reasons for which a run in CI may skip a test; any other skip fails the run: it hides a test."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

EXPECTED = (
    r"could not import '(cupy|torch)'",  # tests/gpu; runners have no GPU
    r"WISP_TEST_TORCH names no Python with transformers",  # tests/runtime/parity
    r"needs (KUBECONFIG and )?-m cluster \(make test-cluster\)",  # the job `cluster` runs these
    r"(restarts a component|ends processes) of tests/cluster/node",  # the same job; faults/ weekly
)
_EXPECTED = re.compile("|".join(EXPECTED))


def unexpected(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Return a line ``test: reason`` for each skipped test whose reason is not in :data:`EXPECTED`."""
    reasons = [(report.nodeid, _reason(report)) for report in reports]
    return [f"{nodeid}: {reason}" for nodeid, reason in reasons if not _EXPECTED.search(reason)]


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)
