"""Scales of a quantized KV cache that a checkpoint brings: a number for a layer's keys, one for its values.

Exporters name them differently (compressed-tensors, ModelOpt, older ones with one scale for both).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from wisp_plan.checkpoint.directory import read_directory
from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.layers.cache import KvScales
from wisp_runtime.ops.protocol.weights.upload import STORED

_NAMES = (
    re.compile(r"(?:^|\.)layers\.(\d+)\.[\w.]*kv_scale$"),
    re.compile(r"(?:^|\.)layers\.(\d+)\.[\w.]*\.([kv])_proj\.output_scale$"),
    re.compile(r"(?:^|\.)layers\.(\d+)\.[\w.]*\.([kv])_scale$"),
)
"""Names of scales, the most specific last: the layer and, unless the scale is of both, ``k`` or ``v``."""


def read_kv_scales(path: Path, spec: ModelSpec, kv_format: KvFormat) -> KvScales:
    """Return the scales of the layers for which the checkpoint in ``path`` has some for ``kv_format``.

    Raises:
        WeightsUnreadable: a scale is not one number above zero.
    """
    stored_for = spec.quantization.kv if spec.quantization else None
    if not kv_format.has_layer_scale or (stored_for or "fp8") != kv_format.name:
        return {}
    by_layer: dict[int, list[float]] = {}
    for layer, which, tensor in _scales(read_directory(path).by_name):
        scales = by_layer.setdefault(layer, [1.0, 1.0])
        value = _read(path, tensor)
        for index, name in enumerate("kv"):
            if which in (name, None):
                scales[index] = value
    return {layer: (k, v) for layer, (k, v) in by_layer.items()}


def _scales(tensors: dict[str, TensorInfo]) -> Iterator[tuple[int, str | None, TensorInfo]]:
    for pattern in _NAMES:
        for name, tensor in tensors.items():
            if match := pattern.search(name):
                yield int(match[1]), match[2] if pattern.groups > 1 else None, tensor


def _read(path: Path, tensor: TensorInfo) -> float:
    bad = f"{tensor.file}: {tensor.name}, a scale of the KV cache,"
    remedy = "Download the file again, or set --kv-cache-dtype bf16."
    if tensor.elements != 1 or tensor.dtype not in ("F32", "BF16", "F16"):
        raise WeightsUnreadable(f"{bad} is {tensor.dtype} {list(tensor.shape)}, must be one number. {remedy}")
    with (path / tensor.file).open("rb") as file:
        file.seek(tensor.start)
        raw = file.read(tensor.size_bytes)
    value = float(np.frombuffer(raw, STORED[tensor.dtype])[0]) if len(raw) == tensor.size_bytes else math.nan
    if not 0 < value < math.inf:
        raise WeightsUnreadable(f"{bad} is {value}, must be above 0 and finite. {remedy}")
    return value
