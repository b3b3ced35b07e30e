"""The GPU's large allocations: one arena for all weights, one each for keys and values. None moves or grows.

They are plain allocations beside CuPy's pool, so that the ledger's prediction equals the driver's report.
"""

from __future__ import annotations

import math
from typing import Any

import cupy as cp
import numpy as np

from wisp_plan.kv_formats import plain
from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.spec.weight import WeightSpec
from wisp_plan.units import format_size
from wisp_plan.weights.layout import held_bytes, packed_elements
from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.driver import translate
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.moe.plan import MOE_KERNELS
from wisp_runtime.ops.cuda.weights.copy_engine import gpu_uploader
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage, clear_padding
from wisp_runtime.ops.cuda.weights.rounding import fill_quantized
from wisp_runtime.ops.protocol.weights.row_permutation import (
    RowPermutation,
    fused_permutation,
    interleaved_head_size,
)
from wisp_runtime.ops.protocol.weights.storage import HeldWeight
from wisp_runtime.ops.protocol.weights.upload import STORED, WeightDestination, WeightUploader
from wisp_runtime.ops.reference.random import random_scale, random_values

_FILL_THREADS = 256
_NUMBERS_A_BLOCK = 8 * _FILL_THREADS


def _dtype(weight: WeightSpec) -> np.dtype[Any]:
    """Return the dtype in which a weight is held."""
    return BF16 if weight.dtype is None else STORED[weight.dtype]


class Arenas:
    """Ops of a GPU that allocate and fill memory; see ``ops/protocol``.

    Args:
        device: the open GPU.
        fuses_rope: whether its GEMMs can apply RoPE, for which rows are interleaved.

    Attributes:
        code_columns: inputs of the widest E4M3 matrix, where its activations can be E4M3 too.
    """

    def __init__(self, device: Gpu, *, fuses_rope: bool) -> None:
        self._device, self._fuses_rope = device, fuses_rope
        self._formats: set[tuple[str, bool]] = set()
        self.code_columns = 0

    def row_permutation(self, weight: WeightSpec) -> RowPermutation:
        """Return the permutation that the GEMM of a weight reads; plain where it does not apply RoPE."""
        permutation = fused_permutation(weight.rows)
        is_rope = interleaved_head_size(permutation) > 0
        return "plain" if is_rope and not self._fuses_rope else permutation

    def weight_bytes(self, weight: WeightSpec) -> int:
        """Return the bytes of a weight: packed and quantized, packed in bf16, or of its own dtype.

        Raises:
            KernelsMissing: kernels of its format are not there or not compiled.
        """
        if weight.held is not None:
            self._require_format(weight.held.name, are_experts=weight.is_of_experts)
        if weight.is_of_experts:
            self._require_experts("bf16" if weight.held is None else weight.held.name)
        return sum(held_bytes(weight))

    def _require_format(self, name: str, *, are_experts: bool) -> None:
        if (name, are_experts) not in self._formats:
            kernels = self._device.kernels
            kernels.require("pack_quantized", "quantize_rows")
            rotary = ("linear_rotary",) if self._fuses_rope else ()
            dense = "linear", "linear_swiglu", "linear_logits", *rotary
            kernels.require(*(("experts",) if are_experts else dense), weight_format=name)
            if kernels.has("quantize_tokens"):
                kernels.require("quantize_tokens")
            self._formats.add((name, are_experts))

    def _require_experts(self, name: str) -> None:
        kernels = self._device.kernels
        kernels.require(*MOE_KERNELS)
        if kernels.has("stream_experts", name):
            kernels.require("stream_experts", weight_format=name)

    def weight_arena(self, size_bytes: int) -> Array:
        """Allocate ``[size_bytes]`` uint8, and have the device's stream clear them."""
        arena = allocate((size_bytes,), np.dtype(np.uint8), "the weights")
        with translate("clearing the memory of the weights"):
            arena.data.memset_async(0, arena.nbytes, self._device.stream)
        return arena

    def weight(self, weight: WeightSpec, storage: Array) -> HeldWeight:
        """See ``storage`` as a packed matrix, quantized or not, as several, or as an array."""
        size_bytes = self.weight_bytes(weight)
        if storage.nbytes != size_bytes:
            raise ShapeError(f"{weight.name} takes {size_bytes} bytes of the arena, not {storage.nbytes}")
        dtype = _dtype(weight)
        if not weight.is_matrix:
            return cp.ndarray(weight.shape, dtype, storage.data)
        *leading, outputs, inputs = weight.shape
        matrix_bytes = size_bytes // max(1, math.prod(leading))
        permutation = self.row_permutation(weight)
        matrices: list[PackedMatrix | QuantizedStorage] = []
        for index in range(math.prod(leading)):
            memory = storage.data + index * matrix_bytes
            if weight.held is None:
                elements = cp.ndarray((packed_elements(outputs, inputs),), dtype, memory)
                matrices.append(PackedMatrix(elements, outputs, inputs, permutation))
            else:
                octets = cp.ndarray((matrix_bytes,), np.dtype(np.uint8), memory)
                quantized = QuantizedStorage(octets, outputs, inputs, permutation, weight.held)
                clear_padding(self._device, quantized)
                if weight.held.numbers == "e4m3" and self._device.kernels.has("quantize_tokens"):
                    self.code_columns = max(self.code_columns, inputs)
                matrices.append(quantized)
        return tuple(matrices) if leading else matrices[0]

    def kv_arena(self, shape: tuple[int, ...], kv_format: KvFormat = plain.BF16) -> Array:
        """Allocate keys or values. Their contents may be NaN: attention never lets it through."""
        return allocate(shape, np.dtype(np.uint8) if kv_format.is_quantized else BF16, "the KV cache")

    def state_arena(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Allocate slots of recurrent state, and have the device's stream clear them."""
        array = allocate(shape, {"bf16": BF16, "float32": np.dtype(np.float32)}[dtype], "recurrent state")
        with translate("clearing the memory of recurrent state"):
            array.data.memset_async(0, array.nbytes, self._device.stream)
        return array

    def copy_slot(self, array: Array, source: int, target: int) -> None:
        """Enqueue the copy of one slot of recurrent state on the device's stream."""
        of, to = array[source], array[target]
        to.data.copy_from_device_async(of.data, of.nbytes, self._device.stream)

    def uploader(self, total_bytes: int) -> WeightUploader:
        """Return an uploader that copies through pinned memory and packs on the GPU."""
        return gpu_uploader(self._device, total_bytes)

    def randomize(self, destination: WeightDestination, *, key: int, mean: float, deviation: float) -> None:
        """Fill a whole matrix or vector with :func:`.reference.random_values`, and wait for it."""
        if isinstance(destination.weight, QuantizedStorage):
            fill_quantized(self._device, destination.weight, key, mean, deviation)
            return
        is_matrix = len(destination.shape) == 2
        storage = destination.weight.storage if is_matrix else destination.weight
        if storage.dtype != BF16:  # vectors that are held in float32 are few and small
            values = random_values(0, storage.size, key, mean=mean, deviation=deviation)
            storage.set(values.astype(storage.dtype).reshape(storage.shape), stream=self._device.stream)
            self._device.synchronize()
            return
        rows_of_head = interleaved_head_size(destination.permutation)
        if destination.permutation == "gate_up_interleaved" and destination.shape[0] % 16:
            raise ShapeError(f"{destination.shape[0]} rows cannot alternate by eights")
        if rows_of_head and destination.shape[0] % rows_of_head:
            raise ShapeError(f"{destination.shape[0]} rows are not whole heads of {rows_of_head}")
        kernel = self._device.kernels.get("fill_random", "fill_random" if is_matrix else "fill_random_vector")
        kernel.launch(
            (-(-storage.size // _NUMBERS_A_BLOCK),),
            _FILL_THREADS,
            storage,
            *(np.int32(size) for size in destination.shape),
            np.int32(rows_of_head or destination.permutation == "gate_up_interleaved"),
            np.uint64(key),
            random_scale(deviation),
            np.float32(mean),
        )
        self._device.synchronize()  # GEMMs load weights before the kernel ahead of them has ended


def allocate(shape: tuple[int, ...], dtype: Any, purpose: str) -> Array:
    """Allocate an array of the GPU outside of CuPy's pool; its contents are undefined.

    Args:
        purpose: use of the array, for the message: ``the weights``.

    Raises:
        GpuOutOfMemory: too little contiguous memory is free.
    """
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    with translate(f"allocating {format_size(size_bytes)} for {purpose}"):
        memory = cp.cuda.Memory(max(1, size_bytes))
        return cp.ndarray(shape, dtype, cp.cuda.MemoryPointer(memory, 0))
