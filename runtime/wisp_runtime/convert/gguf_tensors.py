"""Tensors of a model in GGUF for a safetensors file: dequantized, rows in Hugging Face's order for RoPE."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.gguf.model import GGUFModel
from wisp_plan.gguf.tensor_types import BLOCK_TYPES
from wisp_runtime.batch import Array
from wisp_runtime.convert.writer import PendingTensor
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.ops.protocol.weights.upload import PAGE_BYTES, SLACK_BYTES, STORED, page_aligned
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.gguf_blocks.bits import ScaleInvalid
from wisp_runtime.weights.gguf_blocks.dequantize import dequantize
from wisp_runtime.weights.row_pairs import in_halves

_EXPERTS = re.compile(r"(.+\.experts)\.(\w+\.weight)")
_NORM = re.compile(r"norm\.weight$")


def pending_tensors(model: GGUFModel, files: Files) -> Iterator[PendingTensor]:
    """Yield every tensor of the model, computed when it is written.

    Args:
        model: the model.
        files: its open files.
    """
    for info in (part for stored in model.tensors for part in _expert_by_expert(stored)):
        is_raised = model.family.are_norms_raised and _NORM.search(info.name) is not None
        yield PendingTensor(info.name, shape_of(info), partial(_values, files, info, is_raised=is_raised))


def _expert_by_expert(info: TensorInfo) -> Iterator[TensorInfo]:
    """Yield each expert of a tensor that holds all of them, by its own name; another tensor as it is."""
    match = _EXPERTS.fullmatch(info.name)
    if match is None:
        yield info
        return
    size = info.size_bytes // info.shape[0]
    for expert in range(info.shape[0]):
        start = info.start + expert * size
        name = f"{match[1]}.{expert}.{match[2]}"
        yield replace(info, name=name, shape=info.shape[1:], start=start, end=start + size)


def shape_of(info: TensorInfo) -> tuple[int, ...]:
    """Return the shape of a tensor in weights, where an index counts blocks."""
    block = BLOCK_TYPES.get(info.dtype)
    return info.shape if block is None else (*info.shape[:-1], info.shape[-1] * block.weights)


def _values(files: Files, info: TensorInfo, *, is_raised: bool) -> Array:
    buffer = page_aligned(np.empty(info.size_bytes + SLACK_BYTES + PAGE_BYTES, np.uint8))
    stored = files.read_bytes(info, info.start, info.size_bytes, buffer).view(STORED[info.dtype])
    rows = in_halves(stored.reshape(info.shape), info.paired_rows)
    if info.dtype not in BLOCK_TYPES:
        return rows.astype(np.float32) - np.float32(is_raised)
    try:
        return dequantize(info.dtype, rows).reshape(shape_of(info))
    except ScaleInvalid as error:
        raise WeightsUnreadable(
            f"{info.file}: {info.name} has a scale that is not finite. It is damaged: download it again."
        ) from error
