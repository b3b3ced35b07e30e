"""Reader of a GGUF file: metadata with checked types, and tensors."""

from __future__ import annotations

import re
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
VERSION_BYTES = 4
_UNKNOWN_TYPE = re.compile(r"(?:np\.\w+\()?(\d+)\)? is not a valid GGMLQuantizationType")
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
        ModelUnsupported: its version, or a tensor's type, is not known here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ModelNotFound(f"{path} is not a file. Name a .gguf file.")
        _require_known(path)
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
            raise _unreadable(path, error) from error
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


def _unreadable(path: Path, error: Exception) -> WeightsUnreadable | ModelUnsupported:
    """Tell a type of tensors that is not known here from damage, by the library's message."""
    if match := _UNKNOWN_TYPE.match(str(error)):
        return ModelUnsupported(
            f"{path} has a tensor of type {match[1]}, which is not known here. Use a file of another "
            "quantisation, such as Q8_0 or Q4_K_M."
        )
    return WeightsUnreadable(f"{path} cannot be read ({shorten(str(error))}). Download it again.")


def _require_known(path: Path) -> None:
    """Refuse a file that is not GGUF, or of an unknown version; damaged ones are the reader's to refuse.

    Raises:
        WeightsUnreadable: the file cannot be opened, or does not begin with GGUF's magic.
        ModelUnsupported: the format's version is none that can be read.
    """
    try:
        with path.open("rb") as file:
            magic, version = file.read(len(MAGIC)), file.read(VERSION_BYTES)
    except OSError as error:
        raise WeightsUnreadable(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error
    if magic != MAGIC:
        raise WeightsUnreadable(f"{path} is not a GGUF file. Name one, or download it again.")
    numbers = [int.from_bytes(version, order) for order in ("little", "big")]  # of a big-endian machine too
    if len(version) == VERSION_BYTES and not set(numbers) & set(gguf.READER_SUPPORTED_VERSIONS):
        known = " and ".join(map(str, gguf.READER_SUPPORTED_VERSIONS))
        raise ModelUnsupported(
            f"{path} is of GGUF version {min(numbers)}; versions {known} can be read. Use a file of one."
        )
