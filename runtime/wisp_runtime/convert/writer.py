"""Write a safetensors file tensor by tensor, with at most one in memory.

Source of the format: the README of the ``safetensors`` repository.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from wisp_runtime.batch import Array

DTYPES: dict[str, np.dtype[np.generic]] = {"BF16": np.dtype(ml_dtypes.bfloat16), "F32": np.dtype("<f4")}
_HEADER_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class PendingTensor:
    """A tensor to write.

    Attributes:
        name, shape: name and shape in the file.
        compute: function that returns the values, float32.
    """

    name: str
    shape: tuple[int, ...]
    compute: Callable[[], Array]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def write_safetensors(
    path: Path, tensors: Iterable[PendingTensor], dtype: str, on_progress: Callable[[int, int], None]
) -> int:
    """Write ``tensors`` in their order and return the bytes of the file.

    Args:
        path: path of a new file.
        tensors: tensors to write.
        dtype: dtype of all of them: ``BF16`` (rounded to nearest, ties to even) or ``F32``.
        on_progress: ``on_progress(bytes_done, total_bytes)`` after each tensor.
    """
    listed, stored = list(tensors), DTYPES[dtype]
    ends = np.cumsum([0, *(tensor.elements * stored.itemsize for tensor in listed)]).tolist()
    with path.open("xb") as file:
        file.write(_header(listed, dtype, ends))
        for tensor, end in zip(listed, ends[1:], strict=True):
            values = tensor.compute()
            assert values.shape == tensor.shape, (tensor.name, values.shape, tensor.shape)
            file.write(np.ascontiguousarray(values.astype(stored)).view(np.uint8).data)
            on_progress(end, ends[-1])
        return file.tell()


def _header(tensors: list[PendingTensor], dtype: str, ends: list[int]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for tensor, start, end in zip(tensors, ends, ends[1:], strict=False):
        entries[tensor.name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
