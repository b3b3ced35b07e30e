"""How alike two streams are: per row, because a sum over rows hides the one that is wrong."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

LEAST_COSINE = 0.9999
REPORT = os.environ.get("WISP_TEST_PARITY_JSON")


@dataclass(frozen=True)
class Likeness:
    """Two arrays ``[S, D]``, compared.

    Attributes:
        cosine: of both as one long vector.
        worst_row: the least cosine of a row.
        max_error: the largest difference of two numbers.
        scale: root mean square of the expected numbers.
    """

    cosine: float
    worst_row: float
    max_error: float
    scale: float


def compare(found: np.ndarray, expected: np.ndarray) -> Likeness:
    """Compare ``[S, D]`` arrays; NaN and infinities are as unlike as can be."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    a, b = found.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(a).all():
        return Likeness(-1.0, -1.0, float("inf"), float(np.sqrt((b * b).mean())))
    products, norms_a, norms_b = (a * b).sum(1), (a * a).sum(1), (b * b).sum(1)
    rows = products / np.sqrt(np.maximum(norms_a * norms_b, 1e-300))
    whole = products.sum() / np.sqrt(norms_a.sum() * norms_b.sum())
    return Likeness(
        float(whole), float(rows.min()), float(np.abs(a - b).max()), float(np.sqrt((b * b).mean()))
    )


def report(line: str, **facts: object) -> None:
    """Print a line of the comparison, and append its facts to the file that the environment names."""
    print(line)
    if REPORT:
        with Path(REPORT).open("a", encoding="utf-8") as file:
            file.write(json.dumps({key: _plain(value) for key, value in facts.items()}) + "\n")


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Likeness) else value
