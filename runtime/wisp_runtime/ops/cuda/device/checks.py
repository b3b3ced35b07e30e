"""Refuse arrays that a kernel cannot take, and keep a launch's plan for each set of shapes.

A kernel's wrapper checks and plans a launch once for each set of shapes, so that later calls cost a look-up.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError

_Plan = TypeVar("_Plan")
_ALIGNMENT_BYTES = 16  # the widest access of a thread
_MAX_PLANS = 4096  # shapes differ with the tokens of a step; past this many a wrapper starts anew


def require(op: str, name: str, array: Array, shape: tuple[int, ...], dtype: Any) -> None:
    """Require exactly ``shape`` and ``dtype``, row-major, from a multiple of 16 bytes on."""
    if array.shape != shape or array.dtype != dtype:
        raise ShapeError(f"{op}: {name} is {list(array.shape)} {array.dtype}, must be {list(shape)} {dtype}")
    if not array.flags.c_contiguous:
        raise ShapeError(f"{op}: {name} {list(shape)} has strides {array.strides}, must be contiguous")
    require_aligned(op, name, array)


def require_aligned(op: str, name: str, array: Array) -> None:
    """Require the first element at a multiple of 16 bytes."""
    if array.data.ptr % _ALIGNMENT_BYTES:
        raise ShapeError(
            f"{op}: {name} starts at {array.data.ptr:#x}, must be a multiple of {_ALIGNMENT_BYTES} bytes"
        )


def require_apart(op: str, out_name: str, out: Array, **read: Array) -> None:
    """Require that ``out`` is the buffer of none of the arrays that are read while it is written."""
    if any(out.data.ptr == array.data.ptr for array in read.values()):
        raise ShapeError(f"{op}: {out_name} is the buffer of {' or '.join(read)}, must be another")


def row_count(op: str, rows: Array | None, count: int) -> int:
    """Return the rows of a result: those of ``rows``, ``[R]`` int64, or all ``count`` where it is None."""
    if rows is None:
        return count
    require(op, "rows", rows, (rows.size,), np.int64)
    return int(rows.size)


def require_true(claim: bool, message: str) -> None:
    """Raise ShapeError with ``message`` unless ``claim`` holds."""
    if not claim:
        raise ShapeError(message)


def remember(plans: dict[Any, _Plan], key: Any, plan: _Plan) -> _Plan:
    """Keep the plan of a set of shapes, and return it."""
    if len(plans) >= _MAX_PLANS:
        plans.clear()
    plans[key] = plan
    return plan
