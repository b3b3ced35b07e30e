"""Blocks of 32 weights with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0; and the ternary TQ1_0 and TQ2_0."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.weights.gguf_blocks.bits import ScaledCodes, fields, half

_THREES = np.array([1, 3, 9, 27, 81], np.uint8).reshape(1, 1, 5, 1)


def q4_0(blocks: Array) -> ScaledCodes:
    """Return ``d (q - 8)``."""
    return ScaledCodes(_centered(fields(blocks[:, 2:], 4, 16), 8), half(blocks, 0))


def q4_1(blocks: Array) -> ScaledCodes:
    """Return ``d q + m``."""
    return ScaledCodes(fields(blocks[:, 4:], 4, 16).view(np.int8), half(blocks, 0), half(blocks, 2))


def q5_0(blocks: Array) -> ScaledCodes:
    """Return ``d (q - 16)``; the fifth bits lie in a word of their own."""
    return ScaledCodes(_centered(_five_bits(blocks[:, 6:], blocks[:, 2:6]), 16), half(blocks, 0))


def q5_1(blocks: Array) -> ScaledCodes:
    """Return ``d q + m``."""
    codes = _five_bits(blocks[:, 8:], blocks[:, 4:8]).view(np.int8)
    return ScaledCodes(codes, half(blocks, 0), half(blocks, 2))


def q8_0(blocks: Array) -> ScaledCodes:
    """Return ``d q``."""
    return ScaledCodes(blocks[:, 2:].view(np.int8), half(blocks, 0))


def tq1_0(blocks: Array) -> ScaledCodes:
    """Return ``d (t - 1)`` of base-3 digits t, five a byte, and four a byte of the last."""
    parts = ((blocks[:, :32], 32, 5), (blocks[:, 32:48], 16, 5), (blocks[:, 48:52], 4, 4))
    digits = [
        (raw.reshape(len(raw), -1, 1, run) * _THREES[:, :, :count]).reshape(len(raw), -1)
        for raw, run, count in parts
    ]
    ternary = (np.concatenate(digits, axis=1).astype(np.uint16) * 3) >> 8
    return ScaledCodes(_centered(ternary.astype(np.uint8), 1), half(blocks, 52))


def tq2_0(blocks: Array) -> ScaledCodes:
    """Return ``d (t - 1)`` of two bits t."""
    return ScaledCodes(_centered(fields(blocks[:, :64], 2, 32), 1), half(blocks, 64))


def _centered(codes: Array, middle: int) -> Array:
    return codes.view(np.int8) - np.int8(middle)


def _five_bits(low: Array, high: Array) -> Array:
    fifth = np.unpackbits(np.ascontiguousarray(high), axis=1, bitorder="little")
    return fields(low, 4, 16) | (fifth << np.uint8(4))
