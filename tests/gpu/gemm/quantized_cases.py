"""Random quantized matrices, packed by the reference implementation, with float32 references."""

import cupy as cp
import ml_dtypes
import numpy as np
from linear_cases import Case

from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_runtime.ops.cuda.device.arrays import to_device
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage
from wisp_runtime.ops.reference.quantized_packing import QuantizedMatrix, dequantize, pack_quantized

ROUNDED = {
    name for name, packed in PACKED_FORMATS.items() if packed.numbers == "int4" or packed.has_block_scales
}
"""Formats whose weights are rounded to bf16; the others are exact in it."""

_DEVIATION = {"e4m3": 100.0, "int8": 74.0, "int4": 4.6, "e2m1": 3.0}  # of random codes


def random_matrix(packed, outputs, inputs, seed=1):
    """Make a matrix of random codes and scales, whose weights have a deviation of about 1 / sqrt(in)."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << packed.bits, (outputs, inputs), np.uint8)
    if packed.numbers == "e4m3":
        codes[codes & 127 == 127] = 0x7E  # 448: there is no NaN
    scale = 1 / (_DEVIATION[packed.numbers] * inputs**0.5)
    row_scales = (random.uniform(0.5, 1.5, outputs) * scale).astype(np.float32)
    groups = -(-inputs // packed.group) if packed.group else 0
    group_scales = zero_points = block_scales = None
    if packed.group_scales == "f16":
        group_scales = random.uniform(0.25, 2, (outputs, groups)).astype(np.float16)
    elif packed.group_scales == "exponent":
        group_scales = random.integers(9, 16, (outputs, groups), np.uint8)
        group_scales[random.random(group_scales.shape) < 0.02] = 26
        row_scales /= 1024  # where one of 26 is
    elif packed.group_scales == "e4m3":
        numbers = random.uniform(16, 256, (outputs, groups)).astype(ml_dtypes.float8_e4m3fn)
        numbers[random.random(numbers.shape) < 0.02] = 0
        halves = (numbers.astype(np.float32) * 128).astype(np.float16)
        group_scales = (halves.view(np.uint16) >> 7).astype(np.uint8)
    if packed.has_zero_points:
        zero_points = random.integers(0, 16, (outputs, groups), np.uint8)
    if packed.has_block_scales:
        octets = -(-outputs // 8)
        block_scales = random.uniform(0.25, 2, (octets, -(-inputs // packed.tile_columns)))
        block_scales = np.repeat(block_scales.astype(np.float32), 8, axis=0)[:outputs]
    return QuantizedMatrix(codes, row_scales, group_scales, zero_points, block_scales)


class QuantizedCase(Case):
    """A quantized matrix on the GPU and its float32 reference."""

    def __init__(self, device, name, outputs, inputs, permutation="plain", has_bias=False):
        packed = PACKED_FORMATS[name]
        self.outputs, self.inputs, self.device, self.name = outputs, inputs, device, name
        matrix = random_matrix(packed, outputs, inputs)
        self.dense = to_device(dequantize(packed, matrix))
        storage = to_device(pack_quantized(packed, matrix, permutation))
        self.weight = QuantizedStorage(storage, outputs, inputs, permutation, packed)
        self.add_bias(permutation if has_bias else None)
        device.synchronize()

    def rounding(self, x):
        """Return the largest error of each sum that rounding the weights to bf16 may cause."""
        if self.name not in ROUNDED:
            return 0
        return cp.matmul(cp.abs(x), cp.abs(self.dense.T)) * 2**-8.8
