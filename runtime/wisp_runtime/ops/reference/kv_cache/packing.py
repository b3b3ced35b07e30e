"""Packing of codes of 4 and 3 bits into bytes, the first channel in the lowest bits."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import Array

_SHIFTS = np.arange(0, 24, 3, dtype=np.uint32)  # of 8 codes in 3 bytes


def pack_nibbles(codes: Array) -> Array:
    """Pack codes of 4 bits ``[…, Dh]``, two to a byte, the even channel low: ``[…, Dh / 2]``."""
    packed: Array = codes[..., 0::2] | codes[..., 1::2] << 4
    return packed


def pair_table(levels: Array) -> Array:
    """Return both values of every byte of two codes of 4 bits: ``[256, 2]`` float32."""
    codes = np.arange(256)
    return np.stack([levels[codes & 15], levels[codes >> 4]], axis=1).astype(np.float32)


def pack_triples(codes: Array) -> Array:
    """Pack codes of 3 bits ``[…, Dh]``, eight to 3 bytes, little-endian: ``[…, 3 Dh / 8]``."""
    eights = codes.reshape(*codes.shape[:-1], codes.shape[-1] // 8, 8).astype(np.uint32)
    words = (eights << _SHIFTS).sum(axis=-1, dtype=np.uint32)
    parts = np.stack([words & 255, words >> 8 & 255, words >> 16], axis=-1).astype(np.uint8)
    return parts.reshape(*codes.shape[:-1], codes.shape[-1] // 8 * 3)


def unpack_triples(packed: Array) -> Array:
    """Return the codes ``[…, Dh]`` uint8 of :func:`pack_triples`."""
    parts = packed.reshape(*packed.shape[:-1], -1, 3).astype(np.uint32)
    words = parts[..., 0] | parts[..., 1] << 8 | parts[..., 2] << 16
    return (words[..., None] >> _SHIFTS & 7).astype(np.uint8).reshape(*packed.shape[:-1], -1)
