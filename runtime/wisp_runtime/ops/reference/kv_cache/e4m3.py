"""FP8: E4M3 numbers with a scale a layer."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.rounding import from_e4m3, to_e4m3


class Fp8:
    """A byte a channel: ``x = e4m3 · scale``, encoded as ``x · (1 / scale)``."""

    def encode(self, rows: Array, scale: float) -> tuple[Array, Array]:
        """See :class:`.codec.Codec`."""
        codes = to_e4m3(rows * (np.float32(1) / np.float32(scale)))
        return codes, np.empty((*codes.shape[:-1], 0), np.uint8)

    def decode(self, codes: Array, scales: Array, scale: float) -> Array:  # noqa: ARG002 (there are none)
        """See :class:`.codec.Codec`."""
        values = from_e4m3(codes)
        values *= np.float32(scale)
        return values
