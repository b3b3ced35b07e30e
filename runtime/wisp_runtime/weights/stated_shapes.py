"""Shapes that compressed-tensors states in a tensor of their own (``weight_shape``), beside the model's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.spec.weight import WeightSource, WeightSpec
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.weights.files import Files

_DTYPES = {"I64": np.dtype(np.int64), "I32": np.dtype(np.int32)}


def check_stated_shapes(
    files: Files, weights: Iterable[WeightSpec], tensors: Mapping[str, TensorInfo]
) -> None:
    """Compare each stated shape with the one that the model needs.

    Raises:
        WeightsUnreadable: one differs.
    """
    for source, stated in _stated(weights, tensors):
        dtype = _DTYPES.get(stated.dtype)
        shape: tuple[int, ...] = ()
        if dtype is not None and stated.shape == (2,):
            buffer = np.empty(stated.size_bytes, np.uint8)
            raw = files.read_bytes(stated, stated.start, stated.size_bytes, buffer)
            shape = tuple(raw.view(dtype).tolist())
        if shape != source.shape:
            said = f"says {list(shape)}" if shape else f"is {stated.dtype}{list(stated.shape)}"
            raise WeightsUnreadable(
                f"{stated.file}: {stated.name} {said}, but {source.tensor} must be {list(source.shape)}. "
                "Download config.json and the weights again, from the same revision."
            )


def stating_files(weights: Iterable[WeightSpec], tensors: Mapping[str, TensorInfo]) -> set[str]:
    """Return the names of the files that state shapes."""
    return {stated.file for _, stated in _stated(weights, tensors)}


def _stated(
    weights: Iterable[WeightSpec], tensors: Mapping[str, TensorInfo]
) -> Iterator[tuple[WeightSource, TensorInfo]]:
    for weight in weights:
        for source in weight.sources if weight.stored is not None else ():
            stated = tensors.get(f"{source.tensor}_shape")
            if stated is not None and len(source.shape) == 2:
                yield source, stated
