"""Experts on the GPU and the same in float64, for tests of mixtures."""

from __future__ import annotations

from itertools import pairwise

import cupy as cp
import numpy as np
from quantized_matrix import quantized_matrix

from wisp_plan.quantization.packed_format import EXPERT_FORMATS
from wisp_plan.spec.ffn import Activation
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device
from wisp_runtime.ops.cuda.moe.ops import CudaMoe
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage
from wisp_runtime.ops.protocol.moe import ExpertWeights
from wisp_runtime.ops.reference.activation import activate
from wisp_runtime.ops.reference.packing import pack, permuted_rows
from wisp_runtime.ops.reference.quantized_packing import dequantize, pack_quantized


class Moe(CudaMoe):
    """The ops of mixtures alone.

    Args:
        device: the GPU.
        is_batch_invariant: whether a row has the same bits for any number of tokens.
    """

    def __init__(self, device, *, is_batch_invariant=False):
        self._device, self._is_batch_invariant = device, is_batch_invariant


class Matrices:
    """``[E, out, in]`` on the GPU, at equal distances, and in float32.

    Args:
        name: weight format, ``bf16`` or one of EXPERT_FORMATS.
    """

    def __init__(self, name: str, count: int, outputs: int, inputs: int, permutation: str, random) -> None:
        packed = EXPERT_FORMATS.get(name)
        storages, self.exact = [], np.empty((count, outputs, inputs), np.float32)
        for expert in range(count):
            if packed is None:
                matrix = (random.standard_normal((outputs, inputs)) * inputs**-0.5).astype(BF16)
                storages.append(pack(matrix, permutation).view(np.uint8))
                self.exact[expert] = matrix
            else:
                matrix = quantized_matrix(packed, outputs, inputs, seed=expert)
                exact = dequantize(packed, matrix)
                factor = np.float32(2.0) ** -np.round(np.log2(np.sqrt(np.mean(exact**2) * inputs)))
                matrix.row_scales[:] *= factor
                storages.append(pack_quantized(packed, matrix, permutation))
                self.exact[expert] = dequantize(packed, matrix)
        arena = to_device(np.stack(storages))
        if packed is None:
            self.held = tuple(PackedMatrix(row.view(BF16), outputs, inputs, permutation) for row in arena)
        else:
            self.held = tuple(QuantizedStorage(row, outputs, inputs, permutation, packed) for row in arena)


class Mixture:
    """Experts with biases or not."""

    def __init__(
        self,
        name: str,
        experts: int,
        hidden: int,
        inner: int,
        activation: Activation = "silu",
        *,
        has_bias: bool = False,
    ) -> None:
        random = np.random.default_rng(experts)
        rows = inner if activation == "relu2" else 2 * inner
        permutation = "plain" if activation == "relu2" else "gate_up_interleaved"
        self.activation, self.count = activation, experts
        self.into = Matrices(name, experts, rows, hidden, permutation, random)
        self.down = Matrices(name, experts, hidden, inner, "plain", random)
        self.biases = [None, None]
        held = [None, None]
        if has_bias:
            self.biases = [random.standard_normal((experts, width)).astype(BF16) for width in (rows, hidden)]
            interleaved = np.empty_like(self.biases[0])
            interleaved[:, permuted_rows(rows, permutation)] = self.biases[0]
            held = [to_device(interleaved), to_device(self.biases[1])]
        self.weights = ExpertWeights(self.into.held, self.down.held, *held, activation)

    def expected(self, x, experts, weights, added=None):
        """Return the sums in float32, inner results rounded to bf16, and the size of what is rounded.

        An inner result whose sum is added up in another order may be rounded to the other side: that moves a
        result by up to 2^-7 of its term. Few are, with either sign, so that the root of the terms' squares
        bounds one of them, and twice as much several.
        """
        out, size = np.zeros(x.shape, np.float32), np.zeros(x.shape, np.float32)
        for expert in np.unique(experts):
            rows, places = np.nonzero(experts == expert)
            inner = self._biased(x[rows].astype(np.float32) @ self.into.exact[expert].T, 0, expert)
            inner = activate(inner, self.activation).astype(BF16).astype(np.float32)
            y = self._biased(inner @ self.down.exact[expert].T, 1, expert)
            scaled = weights[rows, places, None]
            np.add.at(out, rows, scaled * y)
            terms = np.sqrt(inner**2 @ (self.down.exact[expert] ** 2).T)
            np.add.at(size, rows, np.abs(scaled) * (np.abs(y) + 2 * terms))
        return (out if added is None else out + added.astype(np.float32)), size

    def _biased(self, sums, which, expert):
        bias = self.biases[which]
        return sums if bias is None else sums + bias[expert].astype(np.float32)


def spread(tokens: int, chosen: int, experts: int, random, kind: str = "random"):
    """Return experts ``[N, K]``: random ones, none of the last third; or as many as can be the same."""
    if kind == "one":
        return np.tile(np.arange(chosen, dtype=np.int32), (tokens, 1))
    used = max(chosen, experts * 2 // 3)
    return np.argsort(random.random((tokens, used)), axis=1)[:, :chosen].astype(np.int32)


def bits(array):
    """Copy the bits of bf16 to the host."""
    return cp.asnumpy(array.view(np.uint16))


def float32(array):
    """Widen bf16 on the host."""
    return bits(array).view(BF16).astype(np.float32)


def are_at_equal_distances(matrices) -> bool:
    """Say whether matrices lie one behind the other."""
    addresses = [matrix.storage.data.ptr for matrix in matrices]
    return len({b - a for a, b in pairwise(addresses)}) <= 1
