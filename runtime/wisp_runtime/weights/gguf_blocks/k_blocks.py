"""K-quants: blocks of 256 weights, whose parts of 16 or 32 have quantized scales: Q2_K to Q6_K."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.weights.gguf_blocks.bits import ScaledCodes, fields, half


def q2_k(blocks: Array) -> ScaledCodes:
    """Return ``d s q - dmin m``: sixteen scales s and minima m of 4 bits."""
    scales = blocks[:, :16]
    codes = fields(blocks[:, 16:80], 2, 32).view(np.int8)
    minima = _times(half(blocks, 82), scales >> np.uint8(4))
    return ScaledCodes(codes, _times(half(blocks, 80), scales & np.uint8(15)), -minima)


def q3_k(blocks: Array) -> ScaledCodes:
    """Return ``d (s - 32) (q - 4 (1 - h))``: two bits q, a third one h in a mask, scales of 6 bits."""
    low = fields(blocks[:, 96:104], 4, 8)
    high = fields(blocks[:, 104:108], 2, 4)
    scales = (low | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    third = fields(blocks[:, :32], 1, 32) ^ np.uint8(1)
    codes = fields(blocks[:, 32:96], 2, 32).astype(np.int8) - (third << np.uint8(2)).astype(np.int8)
    return ScaledCodes(codes, _times(half(blocks, 108), scales))


def q4_k(blocks: Array) -> ScaledCodes:
    """Return ``d s q - dmin m``: eight scales s and minima m of 6 bits."""
    return _scaled(blocks, fields(blocks[:, 16:144], 4, 32))


def q5_k(blocks: Array) -> ScaledCodes:
    """Return ``d s q - dmin m``, with the fifth bits of q apart."""
    fifth = fields(blocks[:, 16:48], 1, 32)
    return _scaled(blocks, fields(blocks[:, 48:176], 4, 32) | (fifth << np.uint8(4)))


def q6_k(blocks: Array) -> ScaledCodes:
    """Return ``d s (q - 32)``: sixteen scales s of 8 bits, the upper two bits of q apart."""
    low, high = fields(blocks[:, :128], 4, 64), fields(blocks[:, 128:192], 2, 32)
    codes = (low | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    return ScaledCodes(codes, _times(half(blocks, 208), blocks[:, 192:208].view(np.int8)))


def _times(scale: Array, scales: Array) -> Array:
    """Return a block's scale times those of its parts: ``[n, parts]``."""
    return scale * scales.astype(np.float32)


def _scaled(blocks: Array, codes: Array) -> ScaledCodes:
    """Return the weights of Q4_K and Q5_K; scales and minima of 6 bits share twelve bytes."""
    first, second, third = (blocks[:, at : at + 4] for at in (4, 8, 12))
    two_bits = np.uint8(0x30)
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 2) & two_bits)), axis=1)
    minima = np.concatenate((second & 63, (third >> 4) | ((second >> 2) & two_bits)), axis=1)
    return ScaledCodes(codes.view(np.int8), _times(half(blocks, 0), scales), -_times(half(blocks, 2), minima))
