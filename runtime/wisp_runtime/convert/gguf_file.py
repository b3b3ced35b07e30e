"""Reader of a GGUF file: metadata with checked types, and tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np

from wisp_plan.json_object import shorten
from wisp_plan.units import format_size
from wisp_runtime.batch import Array
from wisp_runtime.errors import ModelNotFound, ModelUnsupported, WeightsUnreadable

T = TypeVar("T")
MAGIC = b"GGUF"
MAX_VALUES = 1 << 22
"""Values of a header, each held as an array; those of a vocabulary of 262,144 tokens are 2 million."""


class _FileTooShort(ValueError):
    """The header announces more than the file has."""


class _BoundedReader(gguf.GGUFReader):
    """Reader that goes no further than the file, whatever its counts say.

    The library's own slices end early, and its loops count on: an array of 2⁶² values would never end.
    """

    _values = 0

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Array:
        self._values += 1
        if self._values > MAX_VALUES:
            raise ValueError(f"its header has more than {MAX_VALUES} values")
        if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise _FileTooShort
        return super()._get(offset, dtype, count, override_order)


class GGUFFile:
    """Metadata and tensors of one file.

    Args:
        path: path of the file.

    Raises:
        ModelNotFound: there is no such file.
        WeightsUnreadable: it is not GGUF, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ModelNotFound(f"{path} is not a file. Name a .gguf file.")
        _require_magic(path)
        try:
            reader = _BoundedReader(path)
        except OSError as error:
            raise WeightsUnreadable(f"{path} cannot be read: {error.strerror}. Check the disk.") from error
        except (_FileTooShort, IndexError, OverflowError) as error:
            raise WeightsUnreadable(
                f"{path} is truncated or damaged: its header announces more than its "
                f"{format_size(path.stat().st_size)}; download it again."
            ) from error
        except (ValueError, KeyError, RecursionError) as error:
            raise WeightsUnreadable(
                f"{path} cannot be read ({shorten(str(error))}). It is damaged, or of a version or a type of "
                "tensors that is not known here: download it again, or use another file."
            ) from error
        self._fields = reader.fields
        self.tensors: dict[str, Any] = {tensor.name: tensor for tensor in reader.tensors}

    def get(self, key: str, kind: type[T], default: T | None = None) -> T | None:
        """Return the value of ``key``, or ``default`` where the file has none.

        Raises:
            ModelUnsupported: it is of another kind.
        """
        if key not in self._fields:
            return default
        try:
            value = self._fields[key].contents()
        except (ValueError, IndexError, RecursionError) as error:
            raise WeightsUnreadable(f"{self.path}: {key} is damaged; download the file again.") from error
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind):
            raise ModelUnsupported(
                f"{self.path}: {key} is a {type(value).__name__}, expected a {kind.__name__}."
            )
        return value

    def require(self, key: str, kind: type[T]) -> T:
        """Return the value of ``key``.

        Raises:
            ModelUnsupported: the file has none, or it is of another kind.
        """
        value = self.get(key, kind)
        if value is None:
            raise ModelUnsupported(f"{self.path} has no {key}; it cannot be converted without.")
        return value


def _require_magic(path: Path) -> None:
    """Refuse a file that is not GGUF; damaged ones are the reader's to refuse.

    Raises:
        WeightsUnreadable: the file cannot be opened, or does not begin with GGUF's magic.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise WeightsUnreadable(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error
    if magic != MAGIC:
        raise WeightsUnreadable(f"{path} is not a GGUF file. Name one, or download it again.")
