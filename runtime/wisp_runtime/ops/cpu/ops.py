"""The CPU backend: the reference functions behind checks of every shape, with threads of our own.

For small models and for tests. Activations and the cache are float32, and so are weights, or codes
(:mod:`.compact`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import WeightSpec
from wisp_plan.weights.layout import ALIGNMENT_ELEMENTS, padded
from wisp_runtime.batch import Array, Sampled, SamplingBatch
from wisp_runtime.errors import ConfigError, ShapeError
from wisp_runtime.ops import reference
from wisp_runtime.ops.cpu.blas import has_small_gemms, keep_blas_single_threaded
from wisp_runtime.ops.cpu.compact import CompactMatrix, compact_embedding, compact_linear, compact_matrix
from wisp_runtime.ops.cpu.elementwise import Elementwise
from wisp_runtime.ops.cpu.head_projections import HeadProjections
from wisp_runtime.ops.cpu.mixture import Mixture
from wisp_runtime.ops.cpu.packed import PackedMatrix, packed_shape
from wisp_runtime.ops.cpu.recurrent.mixers import RecurrentMixers
from wisp_runtime.ops.cpu.thread_choice import choose_threads
from wisp_runtime.ops.cpu.threads import Workers, available_threads
from wisp_runtime.ops.protocol import checks
from wisp_runtime.ops.protocol.attention import Encodings, RopeTable
from wisp_runtime.ops.protocol.persistent import PersistentKernel
from wisp_runtime.ops.protocol.weights.row_permutation import RowPermutation
from wisp_runtime.ops.protocol.weights.storage import NamedWeights
from wisp_runtime.ops.protocol.weights.upload import (
    STORED,
    CompactRows,
    HostUploader,
    WeightDestination,
    WeightUploader,
)

_ALIGNMENT_BYTES = 64
_NUMBERS_AT_ONCE = 1 << 20


def _dtype(weight: WeightSpec) -> np.dtype[Any]:
    """Return the dtype in which a weight is held; quantized formats are dequantized as they are read."""
    return STORED[weight.dtype or "F32"]


class CpuOps(Elementwise, HeadProjections, RecurrentMixers, Mixture):
    """NumPy as a device.

    Args:
        threads: threads that share a GEMM; None: one, until :meth:`choose_threads`.
    """

    device = "cpu"
    kernels = "reference/numpy"

    def __init__(self, threads: int | None = None) -> None:
        keep_blas_single_threaded()
        self._pairs_rows = has_small_gemms()
        self._is_chosen = threads is not None
        super().__init__()
        self._use_threads(threads or 1)

    def choose_threads(self, spec: ModelSpec) -> None:
        """Use as many threads as decode one sequence of this model fastest, unless their number was set."""
        if not self._is_chosen:
            self._use_threads(choose_threads(spec, available_threads(), pairs_rows=self._pairs_rows))
            self._is_chosen = True

    def _use_threads(self, count: int) -> None:
        self.threads = count
        self._workers = Workers(count) if count > 1 else None

    def matrix_elements(self, outputs: int, inputs: int) -> int:
        """Return the elements of a packed matrix, its last tile's padding included."""
        tiles, _, width = packed_shape(outputs, inputs)
        return tiles * inputs * width

    def weight_bytes(self, weight: WeightSpec) -> int:
        """Return the bytes of a weight in float32, compact, or of its own dtype; matrices are packed."""
        *leading, outputs, inputs = (1, 1, *weight.shape)
        if weight.compact is not None:
            return math.prod(leading) * sum(weight.compact.sizes(outputs, inputs))
        itemsize = _dtype(weight).itemsize
        elements = self.matrix_elements(outputs, inputs) if weight.is_matrix else outputs * inputs
        return padded(math.prod(leading) * elements * itemsize, ALIGNMENT_ELEMENTS * 4)

    def weight_arena(self, size_bytes: int) -> Array:
        """Allocate ``[size_bytes]`` uint8 zeros that start at a multiple of 64 bytes."""
        raw = np.zeros(size_bytes + _ALIGNMENT_BYTES, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT_BYTES
        return raw[start : start + size_bytes]

    def weight(
        self, weight: WeightSpec, storage: Array
    ) -> Array | PackedMatrix | CompactMatrix | tuple[PackedMatrix | CompactMatrix, ...]:
        """See ``storage`` as the tiles of a matrix, as those of several, or as an array."""
        checks.same_shape(weight.name, storage, (self.weight_bytes(weight),))
        if not weight.is_matrix:
            held = storage.view(_dtype(weight))
            return held[: math.prod(weight.shape)].reshape(weight.shape)
        *leading, outputs, inputs = weight.shape
        matrices: tuple[PackedMatrix | CompactMatrix, ...]
        if (layout := weight.compact) is not None:
            parts = storage.reshape(-1, sum(layout.sizes(outputs, inputs)))
            matrices = tuple(compact_matrix(part, layout, outputs, inputs) for part in parts)
        else:
            held, size = storage.view(_dtype(weight)), self.matrix_elements(outputs, inputs)
            parts = held[: math.prod(leading) * size].reshape(-1, size)
            matrices = tuple(self.matrix(part, outputs, inputs) for part in parts)
        return matrices if leading else matrices[0]

    def row_permutation(self, weight: WeightSpec) -> RowPermutation:  # noqa: ARG002 (a GPU's business)
        """Rows are never permuted."""
        return "plain"

    def matrix(self, storage: Array, outputs: int, inputs: int) -> PackedMatrix:
        """See ``storage``, ``[matrix_elements(outputs, inputs)]`` float32, as the tiles of a matrix."""
        checks.same_shape("matrix storage", storage, (self.matrix_elements(outputs, inputs),))
        return PackedMatrix(storage.reshape(packed_shape(outputs, inputs)), outputs)

    def store_rows(self, weight: PackedMatrix, first: int, rows: Array) -> None:
        """Write ``rows`` ``[R, in]``, float32, float16 or bf16, into the matrix from row ``first`` on."""
        checks.columns("rows", rows, weight.inputs)
        if first < 0 or first + len(rows) > weight.outputs:
            raise ShapeError(f"rows {first}:{first + len(rows)} of a matrix of {weight.outputs}")
        reference.store_rows(weight, first, reference.widen(rows))

    def store_vector(self, weight: Array, first: int, values: Array) -> None:
        """Write ``values`` ``[R]`` into ``weight`` from ``first`` on, in its dtype."""
        checks.same_shape("weight part", weight[first : first + len(values)], values.shape)
        weight[first : first + len(values)] = values

    def uploader(self, total_bytes: int) -> WeightUploader:  # noqa: ARG002 (a GPU's business)
        """Return an uploader that widens rows to float32 in the threads that read them."""
        return HostUploader(self.store)

    def store(self, destination: WeightDestination, rows: Array | CompactRows) -> None:
        """Write ``rows`` of the destination's shape at the destination."""
        if isinstance(rows, CompactRows):
            self.store_compact(destination.weight, destination.first, rows)
            return
        store = self.store_rows if rows.ndim == 2 else self.store_vector
        store(destination.weight, destination.first, rows)

    def store_compact(self, weight: CompactMatrix, first: int, rows: CompactRows) -> None:
        """Write codes, scales and minima of rows into the matrix from row ``first`` on."""
        reference.store_rows(weight.codes, first, rows.codes)
        reference.store_rows(weight.scales, first, rows.scales)
        if weight.minima is not None and rows.minima is not None:
            reference.store_rows(weight.minima, first, rows.minima)

    def randomize(self, destination: WeightDestination, *, key: int, mean: float, deviation: float) -> None:
        """Fill a weight, some rows at a time, with :func:`.reference.random_values`."""
        rows, row_numbers = destination.shape[0], math.prod(destination.shape[1:])
        step = max(1, _NUMBERS_AT_ONCE // row_numbers)
        for first in range(0, rows, step):
            count = min(step, rows - first) * row_numbers
            values = reference.random_values(first * row_numbers, count, key, mean=mean, deviation=deviation)
            self.store(replace(destination, first=first), values.reshape(-1, *destination.shape[1:]))

    def set_batch_invariant(self) -> None:
        """Refuse: the order of NumPy's sums depends on the number of rows."""
        raise ConfigError(
            "--deterministic is not possible on the CPU, whose GEMMs are not batch-invariant (--device auto "
            "takes it where there is no GPU). Serve on a Hopper GPU, or leave out --deterministic."
        )

    def from_host(self, array: Array) -> Array:
        """Return ``array``: host and device are one."""
        return array

    def to_host(self, array: Array) -> Array:
        """Return ``array``: host and device are one."""
        return array

    def embedding(self, tokens: Array, table: PackedMatrix | CompactMatrix) -> Array:
        """See :func:`.reference.embedding`; a token outside the table raises ShapeError."""
        checks.indices("tokens", tokens, table.outputs)
        if isinstance(table, CompactMatrix):
            return compact_embedding(tokens, table)
        return reference.embedding(tokens, table)

    def rmsnorm(self, x: Array, weight: Array, *, eps: float, is_zero_centred: bool = False) -> Array:
        """See :func:`.reference.rmsnorm`."""
        checks.same_shape("weight", weight, x.shape[-1:])
        return reference.rmsnorm(x, weight, eps=eps, is_zero_centred=is_zero_centred)

    def add_rmsnorm(
        self,
        x: Array,
        residual: Array,
        weight: Array,
        *,
        eps: float,
        rows: Array | None = None,
        is_zero_centred: bool = False,
    ) -> Array:
        """See :func:`.reference.add_rmsnorm`."""
        checks.same_shape("weight", weight, x.shape[-1:])
        checks.added(x, residual, rows)
        return reference.add_rmsnorm(x, residual, weight, eps=eps, rows=rows, is_zero_centred=is_zero_centred)

    def gather_rows(self, x: Array, rows: Array) -> Array:
        """See :func:`.reference.gather_rows`; a row outside of ``x`` raises ShapeError."""
        checks.rank("x", x, 2)
        checks.indices("rows", rows, len(x))
        return reference.gather_rows(x, rows)

    def linear(self, x: Array, weight: PackedMatrix | CompactMatrix, bias: Array | None = None) -> Array:
        """See :func:`.reference.linear`."""
        checks.columns("x", x, weight.inputs)
        if bias is not None:
            checks.same_shape("bias", bias, (weight.outputs,))
        if isinstance(weight, CompactMatrix):
            return compact_linear(x, weight, bias, workers=self._workers)
        return reference.linear(x, weight, bias, workers=self._workers, pairs_rows=self._pairs_rows)

    def swiglu(self, x: Array, weight: PackedMatrix | CompactMatrix, bias: Array | None = None) -> Array:
        """See :func:`.reference.linear` and :func:`.reference.silu_mul`."""
        return self.silu_mul(self.linear(x, weight, bias))

    def scaled_swiglu(
        self, x: Array, weight: PackedMatrix | CompactMatrix, bias: Array | None, gate_scale: float
    ) -> Array:
        """See :func:`.reference.linear` and :func:`.reference.silu_mul`."""
        gate_up = self.linear(x, weight, bias)
        gate_up[:, : gate_up.shape[1] // 2] *= np.float32(gate_scale)
        return self.silu_mul(gate_up)

    def geglu(self, x: Array, weight: PackedMatrix | CompactMatrix, bias: Array | None = None) -> Array:
        """See :func:`.reference.linear` and :func:`.reference.gelu_mul`."""
        return reference.gelu_mul(self.linear(x, weight, bias))

    def relu2(self, x: Array, weight: PackedMatrix | CompactMatrix, bias: Array | None = None) -> Array:
        """See :func:`.reference.linear` and :func:`.reference.relu2`."""
        return reference.relu2(self.linear(x, weight, bias))

    def logits(self, x: Array, weight: PackedMatrix | CompactMatrix) -> Array:
        """See :func:`.reference.linear`."""
        return self.linear(x, weight)

    def persistent_kernel(
        self,
        spec: ModelSpec,  # noqa: ARG002 (nothing to decide)
        weights: NamedWeights,  # noqa: ARG002
        rope: RopeTable,  # noqa: ARG002
        max_sequences: int,  # noqa: ARG002
        kv: Encodings,  # noqa: ARG002
        *,
        must_be_timed: bool = False,  # noqa: ARG002
    ) -> PersistentKernel | str:
        """Return the reason: a CPU has no launches to save."""
        return "the CPU computes op by op"

    def sample(self, logits: Array, sampling: SamplingBatch) -> Sampled:
        """See :func:`.reference.sample`."""
        checks.sampling(logits, sampling)
        return reference.sample(logits, sampling)
