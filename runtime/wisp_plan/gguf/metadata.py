"""Metadata of a GGUF file: look-ups with checked types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.errors import ConfigInvalid
from wisp_plan.gguf.header import GGUFHeader
from wisp_plan.gguf.values import ListValue
from wisp_plan.json_object import shorten

T = TypeVar("T")
ARCHITECTURE = "general.architecture"


class Metadata:
    """Fields and tensors of a model's first file.

    Args:
        header: header of the file.
        tensors: tensors of all its files, under ggml's names; None: those of the header.

    Attributes:
        file: name of the file.
        tensors: the tensors by name.
    """

    def __init__(self, header: GGUFHeader, tensors: Mapping[str, TensorInfo] | None = None) -> None:
        self.file = header.file
        self.tensors = tensors if tensors is not None else {info.name: info for info in header.tensors}
        self._fields = header.fields

    @property
    def architecture(self) -> str:
        """Name of the architecture, which is also the prefix of its keys."""
        return self.require(ARCHITECTURE, str)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T | None:
        """Return the value of ``key``, or ``default`` where the file has none.

        Args:
            key: the key; ``{arch}`` stands for the architecture.
            kind: ``str``, ``int``, ``float`` or ``bool``.
            default: value of an absent key.

        Raises:
            ConfigInvalid: it is of another kind.
        """
        key = self._key(key)
        if key not in self._fields:
            return default
        value = self._fields[key]
        if kind is float and type(value) is int:
            return float(value)  # type: ignore[return-value]
        if type(value) is not kind:
            raise ConfigInvalid(f"{self.file}: {key} is {_shown(value)}; expected {_KINDS[kind]}.", key=key)
        return value

    def require(self, key: str, kind: type[T]) -> T:
        """Return the value of ``key``.

        Raises:
            ConfigInvalid: the file has none, or it is of another kind.
        """
        value = self.get(key, kind)
        if value is None:
            raise self.missing(self._key(key))
        return value

    def listed(self, key: str) -> list[object]:
        """Return the list ``key``.

        Raises:
            ConfigInvalid: the file has none, or it is no list.
            HeaderInvalid: it holds text that is no UTF-8.
        """
        if key not in self._fields:
            raise self.missing(key)
        value = self._fields[key]
        if not isinstance(value, ListValue):
            raise ConfigInvalid(f"{self.file}: {key} is {_shown(value)}; expected a list.", key=key)
        return value.decode()

    def missing(self, key: str) -> ConfigInvalid:
        """Return the error for a key without which there is no model."""
        return ConfigInvalid(f"{self.file} has no {key}, which a model needs. Use another file.", key=key)

    def _key(self, key: str) -> str:
        return key.replace("{arch}", self.architecture) if "{arch}" in key else key


_KINDS: dict[type, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _shown(value: object) -> str:
    return f"a list of {value.count}" if isinstance(value, ListValue) else shorten(repr(value))
