"""A toy weight format, int8 with a scale a row, through the phases of the persistent kernel as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from emulated_kernel import HERE, needs_compiler
from emulated_step import BF16, SOURCE, EmulatedStep, small
from test_emulated_step import CONTEXTS, MODELS, cosines

from wisp_runtime.ops.reference.packing import permuted_rows

pytestmark = needs_compiler
SHAPE, SIZES, BLOCKS = MODELS["heads of 64"]


class Toy(EmulatedStep):
    """int8 codes and scales in tiles of 16 rows by ``block_k`` columns; 0: the weights they stand for."""

    def __init__(self, block_k: int) -> None:
        self.block_k, options = block_k, (f"-DBLOCK_K={block_k}", f"-I{SOURCE.parent}")
        source = HERE / "int8_decode.cu" if block_k else SOURCE
        super().__init__(small(SHAPE, **SIZES), BLOCKS, options, source)

    def packed(self, name: str, matrix: np.ndarray, permutation: str) -> np.ndarray:
        if not name.startswith("layers."):
            return super().packed(name, matrix, permutation)
        scales = np.abs(matrix.astype(np.float32)).max(1, keepdims=True) / 127
        codes = np.rint(matrix / scales).astype(np.int8)
        if not self.block_k:
            return super().packed(name, (codes * scales).astype(BF16), permutation)
        (rows, columns), place = matrix.shape, permuted_rows(len(matrix), permutation)
        blocks = -(-rows // 64), -(-columns // self.block_k)
        tiles = np.zeros((blocks[0] * 64, blocks[1] * self.block_k + 4), np.int8)
        tiles[place, :columns], tiles[place, -4:] = codes, scales.view(np.int8)
        ends = np.ascontiguousarray(tiles[:, -4:]).reshape(blocks[0], 1, 4, 64).repeat(blocks[1], 1)
        tiles = tiles[:, :-4].reshape(blocks[0], 4, 16, blocks[1], -1).transpose(0, 3, 1, 2, 4)
        return np.concatenate((tiles.reshape(*ends.shape[:3], -1), ends), -1)


@pytest.mark.parametrize("block_k", [64, 128])
def test_a_narrower_format_is_a_struct_of_its_own(block_k: int) -> None:
    quantized, contexts = Toy(block_k), CONTEXTS["padding"]
    batch, live = quantized.batch(contexts), np.array(contexts) > 0
    got, expected = (step.launch(batch, seed=6)[live] for step in (quantized, Toy(0)))
    assert cosines(expected, got).min() > 0.9999
    if block_k == 64:  # K in the same order as bf16's
        assert np.array_equal(expected, got)
