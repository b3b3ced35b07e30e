"""Values of tensors that nothing reads: refused where they are not those that change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from wisp_plan.quantization.scheme import Scheme
from wisp_plan.weights.unread import Neutral, NeutralTensor
from wisp_runtime.batch import Array
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.ops.protocol.weights.upload import PAGE_BYTES, STORED
from wisp_runtime.weights.files import Files

MAX_READ_BYTES = 256 << 10
"""Bytes of a tensor that are compared, its first: all but zero points and the head's bias are smaller."""

_SAME_REPOSITORY = "Take config.json from the same repository as the weights."
_REFUSALS: Final[dict[Neutral, str]] = {
    "zeros": f"is a bias that is not zero, but by config.json the model has none there. {_SAME_REPOSITORY}",
    "ones": "scales the inputs of its layer, which is not done. Choose another checkpoint of the model.",
    "middles": "has zero points, but quantization_config says that the numbers of its layer are symmetric. "
    f"{_SAME_REPOSITORY}",
    "ordered": f"has columns in act-order, but quantization_config does not say so. {_SAME_REPOSITORY}",
}
_MIDDLES = {"int4": (0x77, 0x88), "int8": (0x7F, 0x80)}
"""Bytes of symmetric layers' zero points: the middle, or that less one (GPTQ's version 1)."""


def check_neutral(files: Files, tensors: Iterable[NeutralTensor]) -> None:
    """Compare tensors that nothing reads with the values that change nothing.

    Raises:
        WeightsUnreadable: one has others.
    """
    buffer = np.empty(MAX_READ_BYTES + 2 * PAGE_BYTES, np.uint8)
    for unread in tensors:
        tensor = unread.tensor
        size = min(tensor.size_bytes, MAX_READ_BYTES)
        if not _is_neutral(files.read_bytes(tensor, tensor.start, size, buffer), unread):
            raise WeightsUnreadable(f"{tensor.file}: {tensor.name} {_REFUSALS[unread.neutral]}")


def _is_neutral(raw: Array, unread: NeutralTensor) -> bool:
    match unread.neutral:
        case "middles":
            return unread.scheme is not None and any(
                (raw == octet).all() for octet in _middles(unread.scheme)
            )
        case "ordered":
            columns = unread.scheme.columns if unread.scheme is not None else 0
            return _is_ordered(raw, unread.tensor.dtype, columns)
    dtype = STORED.get(unread.tensor.dtype, np.dtype(np.uint8))
    return bool((raw.view(dtype) == (1 if unread.neutral == "ones" else 0)).all())


def _middles(scheme: Scheme) -> tuple[int, ...]:
    """Return the bytes of which zero points that mean none consist; those that are not packed are 0."""
    unpacked = (0,) if scheme.arrangement not in ("gptq", "awq") else ()
    return *_MIDDLES.get(scheme.kind, ()), *unpacked


def _is_ordered(raw: Array, dtype: str, group: int) -> bool:
    """Return whether groups of columns follow each other, or none is named (-1)."""
    if dtype not in ("I32", "I64"):
        return False
    groups = raw.view(np.int32 if dtype == "I32" else np.int64)
    in_order = np.arange(len(groups)) // (group or max(1, len(groups)))
    return bool((groups == in_order).all() or (groups == -1).all())
