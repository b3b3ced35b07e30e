"""Cosine of two streams of activations, per row, because a sum over rows hides a wrong one."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

MIN_COSINE = 0.9999
REPORT = os.environ.get("WISP_TEST_PARITY_JSON")


@dataclass(frozen=True)
class Likeness:
    """Two arrays ``[S, D]``, compared.

    Attributes:
        cosine: cosine of both as one long vector.
        worst_row: the least cosine of a row.
        max_error: the largest difference of two numbers.
        scale: root mean square of the expected numbers.
    """

    cosine: float
    worst_row: float
    max_error: float
    scale: float


def compare(found: Any, expected: Any) -> Likeness:
    """Compare ``[S, D]`` arrays where ``expected`` lies, in float64; NaN is as unlike as can be."""
    expected = torch.as_tensor(expected)
    a, b = torch.as_tensor(found).to(expected.device, torch.float64), expected.double()
    assert a.shape == b.shape, (a.shape, b.shape)
    scale = float(b.square().mean().sqrt())
    if not bool(a.isfinite().all()):
        return Likeness(-1.0, -1.0, float("inf"), scale)
    dots, norms_a, norms_b = (a * b).sum(1), a.square().sum(1), b.square().sum(1)
    rows = dots / (norms_a * norms_b).clamp_min(1e-300).sqrt()
    whole = dots.sum() / (norms_a.sum() * norms_b.sum()).sqrt()
    return Likeness(float(whole), float(rows.min()), float((a - b).abs().max()), scale)


def report(line: str, **facts: object) -> None:
    """Print a line of the comparison, and append its facts to the file that the environment names."""
    print(line)
    if REPORT:
        with Path(REPORT).open("a", encoding="utf-8") as file:
            file.write(json.dumps({key: _plain(value) for key, value in facts.items()}) + "\n")


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Likeness) else value
