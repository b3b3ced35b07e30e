"""Types of GGUF tensors: blocks of weights along a row, and their bytes.

Source: ``ggml-common.h`` of ggml, whose numbers and names these are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """Type of a quantized tensor: blocks of weights that share scales.

    Attributes:
        name: name of the type, such as ``Q4_K``; also the dtype of its tensors in an index.
        weights: weights of a block, all of one row.
        size_bytes: bytes of a block.
        group: weights of it that share a scale.
        has_minima: whether weights are counted from a minimum, one a scale.
    """

    name: str
    weights: int
    size_bytes: int
    group: int
    has_minima: bool = False

    @property
    def bits(self) -> float:
        """Bits of one weight, its share of the scales included."""
        return 8 * self.size_bytes / self.weights


PLAIN_TYPES = {0: "F32", 1: "F16", 30: "BF16"}
"""Unquantized types by number, with safetensors' names of their dtypes."""

TYPES_BY_NUMBER = {
    2: BlockType("Q4_0", 32, 18, 32),
    3: BlockType("Q4_1", 32, 20, 32, has_minima=True),
    6: BlockType("Q5_0", 32, 22, 32),
    7: BlockType("Q5_1", 32, 24, 32, has_minima=True),
    8: BlockType("Q8_0", 32, 34, 32),
    10: BlockType("Q2_K", 256, 84, 16, has_minima=True),
    11: BlockType("Q3_K", 256, 110, 16),
    12: BlockType("Q4_K", 256, 144, 32, has_minima=True),
    13: BlockType("Q5_K", 256, 176, 32, has_minima=True),
    14: BlockType("Q6_K", 256, 210, 16),
    16: BlockType("IQ2_XXS", 256, 66, 32),
    17: BlockType("IQ2_XS", 256, 74, 16),
    18: BlockType("IQ3_XXS", 256, 98, 32),
    19: BlockType("IQ1_S", 256, 50, 32),
    20: BlockType("IQ4_NL", 32, 18, 32),
    21: BlockType("IQ3_S", 256, 110, 32),
    22: BlockType("IQ2_S", 256, 82, 16),
    23: BlockType("IQ4_XS", 256, 136, 32),
    29: BlockType("IQ1_M", 256, 56, 16),
    34: BlockType("TQ1_0", 256, 54, 256),
    35: BlockType("TQ2_0", 256, 66, 256),
    39: BlockType("MXFP4", 32, 17, 32),
    40: BlockType("NVFP4", 64, 36, 16),
}
"""Quantized types that are read, by their number in files."""

BLOCK_TYPES = {block.name: block for block in TYPES_BY_NUMBER.values()}
"""Quantized types that are read, by name."""

OTHER_TYPES = {
    **{9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"},
    41: "Q1_0",
}
"""Types that are known by name only."""
