"""Reader of a GGUF file: metadata with checked types, and tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import gguf

from wisp_plan.units import format_size
from wisp_runtime.errors import ModelNotFound, ModelUnsupported, WeightsUnreadable

T = TypeVar("T")
MAGIC = b"GGUF"


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
            reader = gguf.GGUFReader(path)
        except OSError as error:
            raise WeightsUnreadable(f"{path} cannot be read: {error.strerror}. Check the disk.") from error
        except (ValueError, KeyError, IndexError, OverflowError) as error:
            raise WeightsUnreadable(
                f"{path} is truncated or damaged: its header announces more than its "
                f"{format_size(path.stat().st_size)}; download it again."
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
        value = self._fields[key].contents()
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
