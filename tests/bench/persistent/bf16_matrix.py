"""bf16 on the GPU, held as uint16, and a random matrix of it as GEMMs read it."""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np
from random_weights import DEVIATION


class Bf16Matrix:
    """A matrix of normal numbers, 128-byte swizzled in blocks of 64 x 64."""

    def __init__(self, out: int, into: int, random: Any) -> None:
        values = random.standard_normal((out, into), dtype=np.float32)
        self.codes = to_bf16(values * np.float32(DEVIATION))
        blocks = self.codes.reshape(out // 64, 8, 8, into // 64, 8, 8).transpose(0, 3, 1, 2, 4, 5)
        row, chunk = cp.arange(8)[:, None], cp.arange(8)[None]
        self.storage = cp.ascontiguousarray(blocks[:, :, :, row, chunk ^ row])

    def dense(self, rows: Any = slice(None)) -> Any:
        """Return rows as float32."""
        return from_bf16(self.codes[rows])


def to_bf16(x: Any) -> Any:
    """Round float32 to bf16, held as uint16."""
    bits = cp.ascontiguousarray(x).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(x: Any) -> Any:
    """Return bf16, held as uint16, as float32."""
    return (x.astype(np.uint32) << 16).view(np.float32)


def from_f16(x: Any) -> Any:
    """Return f16, held as uint16, as float32."""
    return cp.ascontiguousarray(x).view(np.float16).astype(np.float32)
