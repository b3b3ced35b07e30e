"""NVFP4: E2M1 numbers, an E4M3 scale for each 16 channels, and a scale a layer."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.kv_cache.packing import pack_nibbles, pair_table
from wisp_runtime.ops.reference.quantized_packing import E2M1
from wisp_runtime.ops.reference.rounding import E2M1_MAX, from_e4m3, to_e4m3

GROUP = 16

_MIDPOINTS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
_TIES_UP = np.array([0, 1, 0, 1, 0, 1, 0], bool)  # the even code lies above
_BOUNDS = np.where(_TIES_UP, np.nextafter(_MIDPOINTS, np.float32(0)), _MIDPOINTS)
_PAIRS = pair_table(E2M1)


def to_e2m1(values: Array) -> Array:
    """Round float32 to the nearest E2M1, ties to even, ±6 at most: codes of 4 bits, ``[…]`` uint8."""
    codes = np.searchsorted(_BOUNDS, np.abs(values), side="left").astype(np.uint8)
    return codes | np.signbit(values).astype(np.uint8) << 3


class NvFp4:
    """Half a byte a channel: ``x = e2m1 · e4m3 · scale``.

    A group's E4M3 is its largest magnitude over ``6 · scale``, rounded; where that is 0, so are the values.
    """

    def encode(self, rows: Array, scale: float) -> tuple[Array, Array]:
        """See :class:`.codec.Codec`."""
        groups = rows.reshape(*rows.shape[:-1], rows.shape[-1] // GROUP, GROUP)
        largest = np.abs(groups).max(axis=-1)
        scales = to_e4m3(largest * (np.float32(1) / (np.float32(E2M1_MAX) * np.float32(scale))))
        steps = from_e4m3(scales) * np.float32(scale)
        with np.errstate(divide="ignore"):
            inverses = np.where(steps > 0, np.float32(1) / steps, np.float32(0))
        return pack_nibbles(to_e2m1(groups * inverses[..., None]).reshape(rows.shape)), scales

    def decode(self, codes: Array, scales: Array, scale: float) -> Array:
        """See :class:`.codec.Codec`."""
        values = _PAIRS[codes].reshape(*scales.shape, GROUP)
        values *= (from_e4m3(scales) * np.float32(scale))[..., None]
        return values.reshape(*codes.shape[:-1], -1)
