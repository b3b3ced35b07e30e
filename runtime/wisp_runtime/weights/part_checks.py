"""Checks of a quantized layer's stored parts: what a header cannot show, scales and groups that are none."""

from __future__ import annotations

import numpy as np

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.quantization.scheme import Scheme
from wisp_runtime.batch import Array
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.ops.protocol.upload import STORED
from wisp_runtime.weights.quantized_chunks import PartRead

_DAMAGED = "The file is damaged: download it again."
_NO_SCALE = "a scale below zero or not finite"
_E8M0_NAN = 255
_E4M3, _E4M3_MINUS_ZERO, _E4M3_NAN = STORED["F8_E4M3"], 0x80, 0x7F


def check_part(read: PartRead, values: Array, scheme: Scheme) -> None:
    """Refuse scales that are not finite or below zero, and groups of columns that are not alike large.

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
            _check_scales(read.tensor, values.astype(np.float32))
        case "tensor_scale":
            scales = values.astype(np.float32)
            _check_scales(read.tensor, scales)
            if not scales.all():
                raise damaged(read.tensor, "a scale of zero for a whole tensor")
        case "group":
            _check_groups(read, values, scheme)


def _check_scales(tensor: TensorInfo, scales: Array) -> None:
    if not np.isfinite(scales).all() or (scales < 0).any():
        raise damaged(tensor, _NO_SCALE)


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
