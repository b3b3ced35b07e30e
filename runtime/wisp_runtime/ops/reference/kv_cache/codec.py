"""Encoding and decoding of rows of a quantized cache; the formats are in the files beside this one.

A row is one token's K, or V, of one KV head: codes, and a byte of scale for each group of channels. All is
computed in float32; NaN is stored as NaN.
"""

from __future__ import annotations

from typing import Protocol

from wisp_runtime.batch import Array


class Codec(Protocol):
    """A format of rows; of rotated formats, the rows after the rotation (:mod:`.hadamard`)."""

    def encode(self, rows: Array, scale: float) -> tuple[Array, Array]:
        """Encode ``[…, Dh]`` float32: codes ``[…, bytes]`` and scales ``[…, bytes]``, uint8.

        Args:
            rows: K or V.
            scale: layer's scale, by which the values are divided; 1 where the format has none.
        """
        ...

    def decode(self, codes: Array, scales: Array, scale: float) -> Array:
        """Return the values ``[…, Dh]`` float32, given all that :meth:`encode` returned and took."""
        ...
