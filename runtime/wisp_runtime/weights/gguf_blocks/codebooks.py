"""Blocks whose codes choose one of sixteen values: IQ4_NL, IQ4_XS, MXFP4 and NVFP4."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.weights.gguf_blocks.bits import ScaledCodes, fields, half, words

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
TWICE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the values of E2M1; scales are halved for it."""


def iq4_nl(blocks: Array) -> ScaledCodes:
    """Return ``d v[q]``."""
    return ScaledCodes(IQ4_VALUES[fields(blocks[:, 2:], 4, 16)], half(blocks, 0))


def iq4_xs(blocks: Array) -> ScaledCodes:
    """Return ``d (s - 32) v[q]``: eight scales s of 6 bits, four of them in nibbles, two in a word."""
    high = words(blocks[:, 2:4], np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    low = fields(blocks[:, 4:8], 4, 1)
    scales = (low | ((high & 3).astype(np.uint8) << np.uint8(4))).astype(np.int8) - np.int8(32)
    codes = IQ4_VALUES[fields(blocks[:, 8:], 4, 16)]
    return ScaledCodes(codes, half(blocks, 0) * scales.astype(np.float32))


def mxfp4(blocks: Array) -> ScaledCodes:
    """Return ``2^(e - 127) v[q]`` of E2M1's values v."""
    return ScaledCodes(TWICE_E2M1[fields(blocks[:, 1:], 4, 16)], _half_powers()[blocks[:, :1]])


def nvfp4(blocks: Array) -> ScaledCodes:
    """Return ``s v[q]`` of E2M1's values v: four scales s of unsigned E4M3, each for sixteen weights."""
    return ScaledCodes(TWICE_E2M1[fields(blocks[:, 4:], 4, 8)], _half_scales()[blocks[:, :4]])


def _half_powers() -> Array:
    """Return half of what each byte of E8M0 stands for; the least two are subnormal: ``[256]``."""
    codes = np.arange(256, dtype=np.uint32)
    bits = np.where(codes < 2, np.uint32(0x00200000) << codes, (codes - np.uint32(1)) << np.uint32(23))
    return bits.astype(np.uint32).view(np.float32)


def _half_scales() -> Array:
    """Return half of what each byte of unsigned E4M3 stands for: ``[256]``; NaN stands for 0."""
    codes = np.arange(256)
    exponents, mantissas = (codes >> 3) & 15, (codes & 7).astype(np.float32)
    normal = (1 + mantissas / 8) * np.exp2(exponents.astype(np.float32) - 7)
    scales = np.where(exponents == 0, mantissas * np.float32(2**-9), normal)
    return np.where(codes == 0x7F, 0, scales * np.float32(0.5)).astype(np.float32)
