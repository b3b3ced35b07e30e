"""Random GEMMs with quantized weights and float32 references, for the tests of portable GEMMs."""

from dataclasses import replace

import cupy as cp
import numpy as np
from linear_cases import MAX_INPUTS, MAX_ROWS, Case
from quantized_matrix import quantized_matrix

from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage
from wisp_runtime.ops.reference.quantized_packing import dequantize, pack_quantized


class QuantizedCase(Case):
    """A quantized matrix, its weights of size 1 / sqrt(in), and its float32 reference."""

    def __init__(self, device, packed, outputs, inputs, permutation="plain", has_bias=False):
        outputs, inputs = min(outputs, MAX_ROWS), min(inputs, MAX_INPUTS)
        matrix = quantized_matrix(packed, outputs, inputs, seed=outputs + inputs)
        size = np.sqrt(np.square(dequantize(packed, matrix), dtype=np.float64).mean() * inputs)
        matrix = replace(matrix, row_scales=(matrix.row_scales / size).astype(np.float32))
        self.outputs, self.inputs, self.device = outputs, inputs, device
        self.dense = cp.asarray(dequantize(packed, matrix))
        storage = cp.asarray(pack_quantized(packed, matrix, permutation))
        self.weight = QuantizedStorage(storage, outputs, inputs, permutation, packed)
        self.add_bias(permutation if has_bias else None)
        cp.cuda.Device().synchronize()
