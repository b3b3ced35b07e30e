"""Vectors as ``array("f")``: shortened, normalised, compared, written as JSON; without NumPy."""

from __future__ import annotations

import math
import sys
from array import array
from base64 import b64encode
from operator import mul
from typing import TypeAlias

Vector: TypeAlias = "array[float]"


def vector_of(data: bytes, *, dimensions: int | None = None, normalises: bool = True) -> Vector:
    """Return the float32 numbers of ``data``.

    Args:
        data: numbers in this machine's order of bytes.
        dimensions: leading numbers to keep; None keeps all.
        normalises: whether the result has length 1 (zeros stay zeros).
    """
    vector = array("f", data)[:dimensions]
    if normalises and (length := math.hypot(*vector)) > 0:
        return array("f", [number / length for number in vector])
    return vector


def cosine(first: Vector, second: Vector) -> float:
    """Return the cosine of two vectors, at most 1 in spite of rounding; 0 if one is zero."""
    lengths = math.hypot(*first) * math.hypot(*second)
    return max(min(sum(map(mul, first, second)) / lengths, 1.0), -1.0) if lengths > 0 else 0.0


def share_of_second(logits: Vector) -> float:
    """Return the softmax of two logits, of the second."""
    difference = logits[0] - logits[1]
    return 1.0 / (1.0 + math.exp(difference)) if difference < 700 else 0.0


def as_json(vector: Vector, *, is_base64: bool) -> str:
    """Return JSON text: numbers that read as the same float32, or base64 of their bytes, little-endian."""
    if not is_base64:
        return f"[{','.join(['%.9g'] * len(vector)) % tuple(vector)}]"
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return f'"{b64encode(vector.tobytes()).decode()}"'
