"""A quantized cache of keys or of values, read and written as float32 rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_plan.kv_formats.format import KvFormat
from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.kv_cache.codebook import Codebook
from wisp_runtime.ops.reference.kv_cache.codec import Codec
from wisp_runtime.ops.reference.kv_cache.e2m1 import NvFp4
from wisp_runtime.ops.reference.kv_cache.e4m3 import Fp8
from wisp_runtime.ops.reference.kv_cache.hadamard import rotate

CODECS: dict[str, Codec] = {
    "fp8": Fp8(),
    "turbo8": Fp8(),
    "nvfp4": NvFp4(),
    "turbo4": Codebook(4),
    "turbo3": Codebook(3),
}
"""Codecs by format; those of rotated formats come after the rotation."""

_VALUES_AT_ONCE = 1 << 18


def encode_rows(kv_format: KvFormat, rows: Array, scale: float) -> tuple[Array, Array]:
    """Encode ``[…, Dh]`` float32: codes and scales, ``[…, bytes]`` uint8 each."""
    return CODECS[kv_format.name].encode(rotate(rows) if kv_format.is_rotated else rows, scale)


def decode_rows(kv_format: KvFormat, codes: Array, scales: Array, scale: float) -> Array:
    """Return the rows ``[…, Dh]`` float32 that codes and scales stand for."""
    values = CODECS[kv_format.name].decode(codes, scales, scale)
    return rotate(values) if kv_format.is_rotated else values


@dataclass(frozen=True, slots=True)
class QuantizedBlocks:
    """Keys, or values, of one layer: ``[P, Hkv, Tb, bytes of a row]`` uint8.

    Rows of a rotated format are read as they are stored: the few queries and results are rotated instead.

    Attributes:
        array: the blocks; a head's bytes of a block are the codes of all its rows, then their scales.
        kv_format: their format.
        size: Dh.
        scale: scale of the layer.
    """

    array: Array
    kv_format: KvFormat
    size: int
    scale: float = 1.0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the decoded cache, ``[P, Hkv, Tb, Dh]``."""
        blocks, heads, block_tokens, _ = self.array.shape
        return blocks, heads, block_tokens, self.size

    def write(self, rows: Array, slots: Array) -> None:
        """Encode ``[N, Hkv, Dh]`` float32 into slots ``[N]``, ``block * Tb + offset``."""
        blocks, offsets = np.divmod(slots, self.array.shape[2])
        codes, scales = self._parts(self.array)
        codes[blocks, :, offsets], scales[blocks, :, offsets] = encode_rows(self.kv_format, rows, self.scale)

    def take(self, blocks: Array, axis: int = 0) -> Array:
        """Decode blocks ``[n]``: ``[n, Hkv, Tb, Dh]`` float32, some at a time."""
        assert axis == 0, "blocks are the first axis"
        codec, block_values = CODECS[self.kv_format.name], int(np.prod(self.shape[1:]))
        values = np.empty((len(blocks), *self.shape[1:]), np.float32)
        step = max(1, _VALUES_AT_ONCE // block_values)
        for first in range(0, len(blocks), step):
            codes, scales = self._parts(self.array[blocks[first : first + step]])
            values[first : first + step] = codec.decode(codes, scales, self.scale)
        return values

    def __getitem__(self, blocks: slice) -> Array:
        return self.take(np.arange(blocks.start, blocks.stop))

    def _parts(self, array: Array) -> tuple[Array, Array]:
        """View blocks as codes ``[n, Hkv, Tb, bytes]`` and scales ``[n, Hkv, Tb, bytes]``."""
        blocks, heads, block_tokens, row_bytes = array.shape
        code_bytes = self.kv_format.code_bytes(self.size)
        flat = array.reshape(blocks, heads, block_tokens * row_bytes)
        codes, scales = flat[..., : block_tokens * code_bytes], flat[..., block_tokens * code_bytes :]
        codes = np.lib.stride_tricks.as_strided(
            codes, (blocks, heads, block_tokens, code_bytes), (*flat.strides[:2], code_bytes, 1)
        )
        scale_bytes = row_bytes - code_bytes
        scales = np.lib.stride_tricks.as_strided(
            scales, (blocks, heads, block_tokens, scale_bytes), (*flat.strides[:2], scale_bytes, 1)
        )
        return codes, scales
