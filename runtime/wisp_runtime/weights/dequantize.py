"""Dequantization of a checkpoint's rows on the host, for devices without kernels for their format.

The parts beside the values, such as scales, are loaded first; each chunk of values then meets its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from wisp_plan.spec.weight import WeightSpec
from wisp_plan.weights.formats import FORMATS, StoredPart
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.weights import HeldWeight


def decoder_of(
    spec: WeightSpec, held: Mapping[str, HeldWeight], at: tuple[int, ...]
) -> Callable[[Array], Array] | None:
    """Return the dequantization of rows of ``spec`` from index ``at`` on; None for an unquantized weight.

    Args:
        held: all weights by name; the parts of ``spec`` are among them, in the host's memory.
    """
    weight_format = FORMATS[spec.format]
    decode, others = weight_format.decode, weight_format.stored[1:]
    if decode is None:
        return None
    *leading, first, _ = at

    def dequantize(rows: Array) -> Array:
        parts = {}
        for part in others:
            array = held[f"{spec.name}.{part.name}"][tuple(leading)]
            parts[part.name] = _of_rows(array, part, first, len(rows), spec.shape[-1])
        return np.asarray(decode(rows, parts), np.float32)

    return dequantize


def _of_rows(array: Array, part: StoredPart, first: int, count: int, inputs: int) -> Array:
    """Repeat a part's elements so that each of ``count`` rows has its own: ``[R, in]``, or ``[R, 1]``."""
    rows = array[(first + np.arange(count)) // (part.rows or 1)]
    if part.columns == 0:
        return rows
    return rows if part.columns == 1 else np.repeat(rows, part.columns, axis=1)[:, :inputs]
