"""Codebooks of Lloyd and Max for Gaussian values, with a scale for each 16 channels.

A scale is a byte of 5 exponent and 3 mantissa bits without a sign, which a shift by 7 makes a float16: 0, or
2⁻¹⁷ to 61,440; above 0xF7 it is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.kv_cache.packing import (
    pack_nibbles,
    pack_triples,
    pair_table,
    unpack_triples,
)

GROUP = 16
REFINEMENTS = 2
"""Times that a scale is fitted to the codes chosen with the one before."""

_POSITIVE_LEVELS = {
    3: (0.24509418, 0.75600528, 1.34390928, 2.1519457),
    4: (0.12839503, 0.3880483, 0.65675912, 0.94234046, 1.2562312, 1.61804639, 2.06901723, 2.73258957),
}
"""Levels above 0 for a unit Gaussian, by bits; used rounded to bf16. Source: Lloyd 1982, Max 1960."""

_LARGEST_SCALE, _NAN_SCALE = 0xF7, 0xFF
_TO_FLOAT32 = np.float32(2.0**112)  # ratio of a float32 to the float16 of the same bits, shifted


def levels(bits: Literal[3, 4]) -> Array:
    """Return the codebook by code, ``[2^bits]`` float32: the upper bit is the sign, the others ascend."""
    above = np.array(_POSITIVE_LEVELS[bits], ml_dtypes.bfloat16).astype(np.float32)
    return np.concatenate([above, -above])


def midpoints(bits: Literal[3, 4]) -> Array:
    """Return the bounds between magnitudes, ``[2^(bits - 1) - 1]`` float32; on a bound the lower is taken."""
    above = levels(bits)[: 1 << bits - 1]
    return (above[1:] + above[:-1]) * np.float32(0.5)


def to_scale(values: Array) -> Array:
    """Round float32 to the nearest scale, ties to even; below 0 is 0: ``[…]`` uint8."""
    shifted = (np.where(values < 0, np.float32(0), values) * (np.float32(1) / _TO_FLOAT32)).view(np.uint32)
    rounded = (shifted + np.uint32(0x7FFFF) + (shifted >> 20 & 1)) >> 20
    codes = np.minimum(rounded, _LARGEST_SCALE).astype(np.uint8)
    return np.where(np.isnan(values), np.uint8(_NAN_SCALE), codes)


def from_scale(codes: Array) -> Array:
    """Return scales as float32."""
    values = (codes.astype(np.uint32) << 20).view(np.float32) * _TO_FLOAT32
    return np.where(codes > _LARGEST_SCALE, np.float32(np.nan), values)


@dataclass(frozen=True, slots=True)
class Codebook:
    """Codes of 3 or 4 bits: ``x = level · scale of 16``.

    The scale is the root mean square of its channels, then twice the one that fits the codes chosen with it
    best (least squares), rounded; the codes are those nearest with the rounded one.
    """

    bits: Literal[3, 4]

    def encode(self, rows: Array, scale: float) -> tuple[Array, Array]:  # noqa: ARG002 (it has its own)
        """See :class:`.codec.Codec`."""
        groups = rows.reshape(*rows.shape[:-1], rows.shape[-1] // GROUP, GROUP)
        fitted = np.sqrt(_sum(groups * groups) * np.float32(1 / GROUP))
        for _ in range(REFINEMENTS):
            chosen = levels(self.bits)[self._nearest(groups, fitted)]
            fitted = _sum(groups * chosen) / _sum(chosen * chosen)
        scales = to_scale(fitted)
        codes = self._nearest(groups, from_scale(scales)).reshape(rows.shape)
        return (pack_nibbles(codes) if self.bits == 4 else pack_triples(codes)), scales

    def decode(self, codes: Array, scales: Array, scale: float) -> Array:  # noqa: ARG002 (it has its own)
        """See :class:`.codec.Codec`."""
        book = levels(self.bits)
        values = pair_table(book)[codes] if self.bits == 4 else book[unpack_triples(codes)]
        values = values.reshape(*scales.shape, GROUP) * from_scale(scales)[..., None]
        return values.reshape(*scales.shape[:-1], -1)

    def _nearest(self, groups: Array, scales: Array) -> Array:
        with np.errstate(divide="ignore"):
            inverses = np.where(scales > 0, np.float32(1) / scales, np.float32(0))
        scaled = groups * inverses[..., None]
        magnitudes = np.searchsorted(midpoints(self.bits), np.abs(scaled), side="left").astype(np.uint8)
        largest = np.minimum(magnitudes, (1 << self.bits - 1) - 1)  # NaN is sorted behind all
        return largest | np.signbit(scaled).astype(np.uint8) << self.bits - 1


def _sum(groups: Array) -> Array:
    """Sum 16 channels: the lower and the upper half, then neighbours, three times."""
    sums = groups[..., : GROUP // 2] + groups[..., GROUP // 2 :]
    while sums.shape[-1] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    return sums[..., 0]
