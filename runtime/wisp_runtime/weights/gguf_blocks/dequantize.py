"""Dequantize rows of GGUF's blocks, some rows at a time so that what lies between stays in the cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wisp_plan.gguf.tensor_types import BLOCK_TYPES
from wisp_runtime.batch import Array
from wisp_runtime.weights.gguf_blocks import codebooks, grids, k_blocks, small_blocks
from wisp_runtime.weights.gguf_blocks.bits import ScaledCodes

_WEIGHTS_AT_ONCE = 1 << 15  # 128 KiB of float32

DECODERS: dict[str, Callable[[Array], ScaledCodes]] = {
    **{"Q4_0": small_blocks.q4_0, "Q4_1": small_blocks.q4_1, "Q5_0": small_blocks.q5_0},
    **{"Q5_1": small_blocks.q5_1, "Q8_0": small_blocks.q8_0},
    **{"TQ1_0": small_blocks.tq1_0, "TQ2_0": small_blocks.tq2_0},
    **{"Q2_K": k_blocks.q2_k, "Q3_K": k_blocks.q3_k, "Q4_K": k_blocks.q4_k},
    **{"Q5_K": k_blocks.q5_k, "Q6_K": k_blocks.q6_k},
    **{"IQ4_NL": codebooks.iq4_nl, "IQ4_XS": codebooks.iq4_xs},
    **{"MXFP4": codebooks.mxfp4, "NVFP4": codebooks.nvfp4},
    **{"IQ1_S": grids.iq1_s, "IQ1_M": grids.iq1_m, "IQ2_XXS": grids.iq2_xxs, "IQ2_XS": grids.iq2_xs},
    **{"IQ2_S": grids.iq2_s, "IQ3_XXS": grids.iq3_xxs, "IQ3_S": grids.iq3_s},
}
"""Decoder of each type, from bytes ``[n, block bytes]``."""


def dequantize(block_type: str, blocks: Array) -> Array:
    """Return the weights of rows of blocks.

    Args:
        block_type: GGUF's name of their type.
        blocks: ``[R, B]``, a void of a block's bytes each.

    Returns:
        ``[R, B * weights of a block]`` float32.

    Raises:
        ScaleInvalid: a scale is not finite.
    """
    decode, rows = DECODERS[block_type], len(blocks)
    raw = np.ascontiguousarray(blocks).view(np.uint8).reshape(-1, blocks.dtype.itemsize)
    width = BLOCK_TYPES[block_type].weights
    weights = np.empty((len(raw), width), np.float32)
    step = _WEIGHTS_AT_ONCE // width
    for start in range(0, len(raw), step):
        weights[start : start + step] = decode(raw[start : start + step]).weights()
    return weights.reshape(rows, -1)


def scaled_codes(block_type: str, blocks: Array) -> ScaledCodes:
    """Return rows of blocks ``[R, B]`` as codes ``[R, in]``, scales and minima ``[R, groups]``.

    Raises:
        ScaleInvalid: a scale is not finite.
    """
    rows = len(blocks)
    raw = np.ascontiguousarray(blocks).view(np.uint8).reshape(-1, blocks.dtype.itemsize)
    decoded = DECODERS[block_type](raw)
    minima = None if decoded.minima is None else decoded.minima.reshape(rows, -1)
    return ScaledCodes(decoded.codes.reshape(rows, -1), decoded.scales.reshape(rows, -1), minima)
