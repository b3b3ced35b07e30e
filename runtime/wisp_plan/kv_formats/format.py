"""Format of keys and values in a paged cache; the formats are in the files beside this one.

A row is one token's K, or V, of one KV head. A block of a head has ``Tb`` rows: in a quantized format first
the codes of all of them, then their scales, so that each part is one run of bytes. What the bytes mean is in
``wisp_runtime/ops/reference/kv_cache/``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ELEMENT_BYTES = {"uint8": 1, "bf16": 2, "float32": 4}
"""Bytes of an element of a cache's arrays, by dtype."""


@dataclass(frozen=True, slots=True)
class KvFormat:
    """Format of keys and values.

    Attributes:
        name: name on the command line (``--kv-cache-dtype``).
        bits: bits of one value, without scales.
        dtype: dtype of the arrays; of a quantized format bytes.
        scale_channels: channels of a row that share a scale of one byte; 0: there are none.
        largest: largest value that is held, before the layer's scale; of formats that have one.
        is_rotated: whether a Walsh-Hadamard transform of each head's channels is stored.
    """

    name: str
    bits: int
    dtype: Literal["uint8", "bf16", "float32"] = "uint8"
    scale_channels: int = 0
    largest: float = 0.0
    is_rotated: bool = False

    @property
    def has_layer_scale(self) -> bool:
        """Whether a float32 scale of the layer's K, and one of its V, multiply what is stored."""
        return self.largest > 0

    @property
    def is_quantized(self) -> bool:
        """Whether rows are codes in bytes."""
        return self.dtype == "uint8"

    @property
    def channel_multiple(self) -> int:
        """Number that a head's channels must be a multiple of."""
        return 16 if self.scale_channels or self.is_rotated else 1

    def code_bytes(self, size: int) -> int:
        """Bytes of a row of ``size`` channels, without scales."""
        return -(-size * self.bits // 8)

    def scale_bytes(self, size: int) -> int:
        """Bytes of a row's scales."""
        return size // self.scale_channels if self.scale_channels else 0

    def row_elements(self, size: int) -> int:
        """Return the elements of :attr:`dtype` that hold a row of ``size`` channels, scales included."""
        return self.code_bytes(size) + self.scale_bytes(size) if self.is_quantized else size

    def row_bytes(self, size: int) -> int:
        """Return the bytes of a row of ``size`` channels, scales included."""
        return self.row_elements(size) * ELEMENT_BYTES[self.dtype]
