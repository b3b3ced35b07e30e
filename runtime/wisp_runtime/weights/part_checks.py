"""Checks of a quantized layer's stored parts that no header allows: values of scales and of group indices."""

from __future__ import annotations

import numpy as np

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.quantization.scheme import Scheme
from wisp_runtime.batch import Array
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.ops.protocol.weights.upload import STORED
from wisp_runtime.weights.quantized_chunks import PartRead

_DAMAGED = "The file is damaged: download it again."
_NO_SCALE, _NOT_FINITE = "a scale below zero or not finite", "a scale that is not finite"
_SIGNED = ("int4", "int8")
"""Kinds of number whose scales may be below zero: AutoRound's are, as int4 has one number more there."""

_MAX_FINITE = {
    STORED["F8_E4M3"]: 0x7E,
    STORED["BF16"]: 0x7F7F,
    STORED["F16"]: 0x7BFF,
    STORED["F32"]: 0x7F7FFFFF,
}
"""Bits of the largest finite number of each dtype; those of larger magnitude are NaN or infinite."""

_CHECKED_ELEMENTS = 1 << 17  # at a time: they stay in a core's cache
_E8M0_NAN = 255
_E4M3, _E4M3_MINUS_ZERO, _E4M3_NAN = STORED["F8_E4M3"], 0x80, 0x7F


def check_part(read: PartRead, values: Array, scheme: Scheme) -> None:
    """Refuse scales that are not finite or below zero, and groups of columns of unequal sizes.

    Args:
        read: the part's place, for messages.
        values: its elements, as stored.
        scheme: scheme of its layer.

    Raises:
        WeightsUnreadable: the part cannot be used.
    """
    match read.source.part.name:
        case "scale" if values.dtype == np.uint8:
            if (values == _E8M0_NAN).any():
                raise damaged(read.tensor, "a scale of 255, which is no power of two but NaN")
        case "scale" if values.dtype == _E4M3:
            codes = values.view(np.uint8)
            if (codes > _E4M3_MINUS_ZERO).any() or (codes == _E4M3_NAN).any():
                raise damaged(read.tensor, _NO_SCALE)
        case "scale":
            _check_scales(read.tensor, values, is_signed=scheme.kind in _SIGNED)
        case "tensor_scale":
            _check_scales(read.tensor, values, is_signed=False)
            if not values.astype(np.float32).all():
                raise damaged(read.tensor, "a scale of zero for a whole tensor")
        case "group":
            _check_groups(read, values, scheme)


def check_numbers(tensor: TensorInfo, values: Array) -> None:
    """Refuse weights that are NaN or infinite.

    Args:
        tensor: their tensor, for the message.
        values: contiguous, as stored.

    Raises:
        WeightsUnreadable: one is, of a dtype that has such numbers.
    """
    if not is_finite(values):
        raise damaged(tensor, "a weight that is not finite")


def is_finite(values: Array) -> bool:
    """Return whether contiguous values are finite: NaN and infinity have the largest bits of their sign."""
    limit = _MAX_FINITE.get(values.dtype)
    if limit is None or not values.size:
        return True
    bits = values.reshape(-1).view(f"u{values.itemsize}")
    sign = 1 << (8 * values.itemsize - 1)
    for first in range(0, len(bits), _CHECKED_ELEMENTS):
        part = bits[first : first + _CHECKED_ELEMENTS]
        if part.view(f"i{values.itemsize}").max() > limit or part.max() > sign + limit:
            return False
    return True


def _check_scales(tensor: TensorInfo, values: Array, *, is_signed: bool) -> None:
    scales = values.astype(np.float32)
    if not np.isfinite(scales).all() or (not is_signed and (scales < 0).any()):
        raise damaged(tensor, _NOT_FINITE if is_signed else _NO_SCALE)


def _check_groups(read: PartRead, groups: Array, scheme: Scheme) -> None:
    count = read.source.view[-1] // scheme.columns
    if groups.min() < 0 or groups.max() >= count:
        wrong = next(group for group in groups.flat if not 0 <= group < count)
        raise damaged(read.tensor, f"the group {wrong}, but there are {count}, of {scheme.columns} columns")
    if len(groups.flat) == read.source.view[-1] and (np.bincount(groups.flat) != scheme.columns).any():
        raise damaged(read.tensor, f"groups of other sizes than {scheme.columns} columns")


def damaged(tensor: TensorInfo, wrong: str) -> WeightsUnreadable:
    """Return the error for a tensor that has something wrong."""
    return WeightsUnreadable(f"{tensor.file}: {tensor.name} has {wrong}. {_DAMAGED}")
