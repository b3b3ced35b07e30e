"""A named buffer of a device: shape and dtype, from which its bytes follow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from wisp_plan.weights.layout import padded

DTYPE_BYTES = {"bfloat16": 2, "float32": 4, "int32": 4, "int64": 8, "uint8": 1, "uint32": 4, "uint64": 8}
Dtype = Literal["bfloat16", "float32", "int32", "int64", "uint8", "uint32", "uint64"]

ALIGNMENT_BYTES = 256
"""Every buffer is a multiple of it."""


def numbered(name: str, number: int) -> str:
    """Return the name of buffer ``number`` of several alike; the first has the name alone."""
    return f"{name}.{number}" if number else name


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a step uses, allocated once, before the first step.

    Attributes:
        name: unique among the buffers of a device.
        shape: largest shape that a step needs.
        dtype: element type.
        is_zeroed: whether it is zeroed when it is allocated; kernels leave such a buffer at zero.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    is_zeroed: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes, padding included."""
        return padded(math.prod(self.shape) * DTYPE_BYTES[self.dtype], ALIGNMENT_BYTES)
