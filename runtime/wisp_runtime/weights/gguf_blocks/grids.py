"""Blocks whose codes choose four or eight values at once, points of a grid: IQ1, IQ2 and IQ3.

The grids are ggml's (``ggml-common.h``), in ``grids.bin``: the number of each value among the few that a grid
has, the lowest bits of a byte first, one grid after the other.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.weights.gguf_blocks.bits import ScaledCodes, fields, finite, half, words

_TWO_BITS, _THREE_BITS = (8, 25, 43), (4, 12, 20, 28, 36, 44, 52, 62)
_GRIDS: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "IQ2_XXS": (256, 8, 2, _TWO_BITS),
    "IQ2_XS": (512, 8, 2, _TWO_BITS),
    "IQ2_S": (1024, 8, 2, _TWO_BITS),
    "IQ3_XXS": (256, 4, 4, _THREE_BITS),
    "IQ3_S": (512, 4, 4, (1, 3, 5, 7, 9, 11, 13, 15)),
    "IQ1": (2048, 8, 2, (-8, 0, 8)),
}
"""Grids in the order of the file: points, values of a point, bits of a value's number, the values.

IQ1's are eight times ggml's -1, 0 and 1, so that its offset of 1/8 is an integer.
"""


@lru_cache(maxsize=1)
def grids() -> dict[str, Array]:
    """Return every grid by name, ``[points, values]`` int8."""
    raw = np.frombuffer((Path(__file__).parent / "grids.bin").read_bytes(), np.uint8)
    made, start = {}, 0
    for name, (points, width, bits, values) in _GRIDS.items():
        size = points * width * bits // 8
        numbers = fields(raw[start : start + size].reshape(1, -1), bits, 1)
        made[name] = np.array(values, np.int8)[numbers].reshape(points, width)
        start += size
    return made


def iq2_xxs(blocks: Array) -> ScaledCodes:
    """Return ``d (s + 1/2) / 4`` times signed points: of 8 bytes, four points, then signs and s."""
    raw = blocks[:, 2:].reshape(len(blocks), 8, 8)
    points = grids()["IQ2_XXS"][raw[:, :, :4]]
    return _signed(half(blocks, 0), words(raw[:, :, 4:], np.uint32)[..., 0], points, np.float32(0.25))


def iq3_xxs(blocks: Array) -> ScaledCodes:
    """Return ``d (s + 1/2) / 2`` times signed points: 64 bytes of points, then signs and s."""
    points = grids()["IQ3_XXS"][blocks[:, 2:66]].reshape(-1, 8, 4, 8)
    return _signed(half(blocks, 0), words(blocks[:, 66:], np.uint32), points, np.float32(0.5))


def _signed(scale: Array, signs_and_scales: Array, points: Array, share: np.float32) -> ScaledCodes:
    """Return the weights; a word ``[n, 8]`` has four times 7 bits of signs, and a scale in its last four."""
    scales = scale * (np.float32(0.5) + (signs_and_scales >> 28).astype(np.float32)) * share
    seven = (signs_and_scales[:, :, None] >> np.arange(0, 28, 7, dtype=np.uint32)) & np.uint32(127)
    return ScaledCodes((points * _signs(_with_parity(seven))).reshape(len(scale), -1), scales)


def iq2_xs(blocks: Array) -> ScaledCodes:
    """Return ``d (s + 1/2) / 4`` times signed points: 9 bits of a point and 7 of its signs in a word."""
    chosen = words(blocks[:, 2:66], np.uint16)
    points = grids()["IQ2_XS"][chosen & 511] * _signs(_with_parity(chosen >> 9))
    return _in_sixteens(half(blocks, 0), blocks[:, 66:], points)


def iq2_s(blocks: Array) -> ScaledCodes:
    """Return ``d (s + 1/2) / 4`` times signed points: 10 bits of a point, 8 of its signs."""
    high = fields(blocks[:, 66:74], 2, 1).astype(np.uint16)
    points = grids()["IQ2_S"][blocks[:, 2:34] | (high << 8)] * _signs(blocks[:, 34:66])
    return _in_sixteens(half(blocks, 0), blocks[:, 74:], points)


def _in_sixteens(scale: Array, scales: Array, points: Array) -> ScaledCodes:
    """Return the weights of IQ2_XS and IQ2_S: a scale of 4 bits for sixteen."""
    parts = scale * (np.float32(0.5) + fields(scales, 4, 1)) * np.float32(0.25)
    return ScaledCodes(points.reshape(len(scale), -1), parts)


def iq3_s(blocks: Array) -> ScaledCodes:
    """Return ``d (2 s + 1)`` times signed points: 9 bits of a point, 4 of its signs; s of 4 bits for 32."""
    high = fields(blocks[:, 66:74], 1, 1).astype(np.uint16)
    points = grids()["IQ3_S"][blocks[:, 2:66] | (high << 8)].reshape(len(blocks), -1)
    signs = _signs(blocks[:, 74:106]).reshape(len(blocks), -1)
    return ScaledCodes(points * signs, half(blocks, 0) * (1 + 2 * fields(blocks[:, 106:], 4, 1)))


def iq1_s(blocks: Array) -> ScaledCodes:
    """Return ``d (2 s + 1) (point ± 1/8)``: s, the sign and the points' upper bits in a word for 32."""
    high = words(blocks[:, 34:], np.uint16)
    upper = (high[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7
    chosen = blocks[:, 2:34] | (upper << 8).reshape(len(blocks), -1)
    points = grids()["IQ1"][chosen].reshape(-1, 8, 32)
    codes = points + _one(high & 0x8000)[:, :, None]
    return ScaledCodes(codes.reshape(len(blocks), -1), _eighths(half(blocks, 0), (high >> 12) & 7))


def iq1_m(blocks: Array) -> ScaledCodes:
    """Return ``d (2 s + 1) (point ± 1/8)``: s for sixteen, a sign for eight; d in the words of s."""
    halves = fields(blocks[:, 32:48], 4, 1)
    chosen = blocks[:, :32] | ((halves & 7).astype(np.uint16) << 8)
    codes = grids()["IQ1"][chosen] + _one(halves & 8)[:, :, None]
    scales = words(blocks[:, 48:], np.uint16)
    nibbles = (scales & 0xF000) >> np.array([12, 8, 4, 0], np.uint16)
    scale = finite(np.bitwise_or.reduce(nibbles, axis=1, keepdims=True).view(np.float16))
    threes = (scales[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7
    return ScaledCodes(codes.reshape(len(blocks), -1), _eighths(scale, threes.reshape(len(blocks), -1)))


def _one(signs: Array) -> Array:
    """Return 1 where a sign's bit is 0, else -1."""
    return np.where(signs == 0, np.int8(1), np.int8(-1))


def _eighths(scale: Array, scales: Array) -> Array:
    """Return ``d (2 s + 1) / 8``."""
    return scale * (2 * scales + 1) * np.float32(0.125)


def _with_parity(seven: Array) -> Array:
    """Return seven signs as eight: the last makes the number of minus signs even."""
    seven = seven.astype(np.uint8)
    return seven | ((np.bitwise_count(seven) & np.uint8(1)) << np.uint8(7))


def _signs(raw: Array) -> Array:
    """Return the signs of bytes, the lowest bit first: ``[..., 8]`` of 1 and -1, int8."""
    bits = np.unpackbits(np.ascontiguousarray(raw)[..., None], axis=-1, bitorder="little")
    return np.int8(1) - np.int8(2) * bits.view(np.int8)
