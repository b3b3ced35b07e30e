"""GEMMs of a mixture's experts, each over its own tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_plan.spec.ffn import has_gate
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_aligned, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.gemm.linear import Matrix
from wisp_runtime.ops.cuda.gemm.portable_plan import GemmArguments, quantized_arguments
from wisp_runtime.ops.cuda.moe.arguments import PLAIN_STORE, STORES, ExpertArguments
from wisp_runtime.ops.cuda.moe.matrices import ExpertMatrices, kind_of
from wisp_runtime.ops.cuda.moe.plan import (
    Tile,
    experts_entry,
    experts_grid,
    experts_shared_bytes,
    mma_tile,
    wide_tile,
)
from wisp_runtime.ops.cuda.moe.sorting import SortedPairs
from wisp_runtime.ops.cuda.moe.stream_experts import StreamExperts
from wisp_runtime.ops.cuda.moe.wide_experts import WideExperts, wide_format
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage
from wisp_runtime.ops.protocol.moe import ExpertResults, ExpertWeights, Routing

_THREADS = constants()["mma_gemm_threads"]
_INTERLEAVED = "gate_up_interleaved"


@dataclass(frozen=True, slots=True)
class _Gemm:
    """Launch of the experts' GEMM for all layers of a shape.

    Attributes:
        columns: columns of the result.
    """

    kernel: Kernel
    grid: tuple[int, int]
    shared_bytes: int
    gemm: Any
    experts: ExpertArguments
    columns: int


class Experts:
    """Multiply tokens by their experts' matrices.

    Args:
        device: the GPU.
        has_wide: whether a Hopper takes its own kernel where experts have many tokens; the others' results
            have the same bits for any number of tokens.
    """

    def __init__(self, device: Gpu, *, has_wide: bool = True) -> None:
        self._kernels, self._workspace = device.kernels, device.workspace
        self._wide, self._stream = WideExperts(device), StreamExperts(device)
        self._has_wide = has_wide and device.arch.startswith("sm_90")
        self._wide_format: str | None = None  # of the last experts, where Hopper's kernels multiply them
        self._matrices: dict[int, tuple[Any, ExpertMatrices]] = {}
        self._joined: dict[int, tuple[ExpertWeights, bool]] = {}
        self._gemms: dict[Any, _Gemm] = {}
        self._checked: dict[Any, bool] = {}

    def matrices(self, weight: tuple[Matrix, ...]) -> ExpertMatrices:
        """Return the matrices of a layer's experts as one; looked at once a layer."""
        known = self._matrices.get(id(weight))
        if known is None or known[0] is not weight:
            known = self._matrices[id(weight)] = weight, ExpertMatrices.of(weight)
        return known[1]

    def joins_shared(self, experts: ExpertWeights) -> bool:
        """Return whether the shared expert's matrices lie behind the others', and are of their kind."""
        known = self._joined.get(id(experts))
        if known is None or known[0] is not experts:
            known = self._joined[id(experts)] = experts, self._lies_behind(experts)
        return known[1]

    def tile(self, pairs: int, count: int, experts: ExpertWeights | None = None) -> Tile:
        """Return the tile by which ``pairs`` of one of ``count`` experts are sorted.

        Args:
            experts: their weights; None: not known yet, of the kind of the last ones.
        """
        if experts is not None:
            self._wide_format = wide_format(experts) if self._has_wide else None
        if self._wide_format is None:
            return mma_tile(pairs, count)
        return wide_tile(pairs, count, is_packed=self._wide_format != "bf16") or mma_tile(pairs, count)

    def __call__(
        self, x: Array, routing: Routing, ordered: SortedPairs, experts: ExpertWeights, added: Array | None
    ) -> ExpertResults:
        """Return the results of each position; see :meth:`.protocol.moe.MoeOps.mixture`.

        Args:
            x: ``[N, D]`` bf16, N > 0; rows may be apart by any multiple of 16 bytes.
            routing: experts and their weights.
            ordered: its pairs, sorted.
            experts: weights.
            added: ``[N, D]`` bf16, contiguous, or None.

        Raises:
            ShapeError: an array differs from the above.
        """
        self._check(x, routing, experts, added)
        y = self.multiply(x, experts, ordered)
        if ordered.has_shared:
            added = y[routing.experts.size :]
        return ExpertResults(y, ordered.positions, routing, added)

    def multiply(self, x: Array, experts: ExpertWeights, ordered: SortedPairs) -> Array:
        """Return the results of both GEMMs of each position: ``[N K, D]`` bf16."""
        into, down = self.matrices(experts.gate_up), self.matrices(experts.down)
        if self._stream.takes(into, down, len(x), ordered.tile):
            return self._stream(x, into, down, experts, ordered)
        return self.multiply_out(self.multiply_in(x, experts, ordered), experts, ordered)

    def multiply_in(self, x: Array, experts: ExpertWeights, ordered: SortedPairs) -> Array:
        """Return the activated results of gate and up of each position: ``[N K, F]`` bf16."""
        matrices, store = self.matrices(experts.gate_up), STORES[experts.activation]
        if ordered.tile.is_wide:
            positions = self._wide.gather(x, ordered.rows)
            return self._wide.gated(positions, matrices, experts.gate_up_bias, ordered)
        return self._multiply(x, matrices, experts.gate_up_bias, store, ordered, ordered.rows, "moe.inner")

    def multiply_out(self, inner: Array, experts: ExpertWeights, ordered: SortedPairs) -> Array:
        """Return the results of each position: ``[N K, D]`` bf16."""
        matrices = self.matrices(experts.down)
        if ordered.tile.is_wide:
            return self._wide.down(inner, matrices, experts.down_bias, ordered)
        return self._multiply(inner, matrices, experts.down_bias, PLAIN_STORE, ordered, None, "moe.outputs")

    def _multiply(
        self,
        x: Array,
        matrices: ExpertMatrices,
        bias: Array | None,
        store: int,
        ordered: SortedPairs,
        rows: Array | None,
        out_name: str,
    ) -> Array:
        first, pairs = matrices.first, len(ordered.rows)
        shapes = pairs, ordered.tile, len(ordered.tiles)
        key = out_name, x.strides[0], kind_of(first), matrices.count, store, shapes
        launch = self._gemms.get(key)
        if launch is None:
            launch = remember(self._gemms, key, self._launch(x, matrices, store, ordered, pairs))
        out = self._workspace.array(out_name, (pairs, launch.columns), BF16)
        gemm, experts = launch.gemm, launch.experts
        gemm.weight, gemm.out = first.storage.data.ptr, out.data.ptr
        gemm.bias = None if bias is None else bias.data.ptr
        experts.tiles, experts.tile_count = ordered.tiles.data.ptr, ordered.tile_count.data.ptr
        experts.rows = None if rows is None else rows.data.ptr
        experts.matrix_bytes = matrices.distance_bytes
        launch.kernel.launch(
            launch.grid, _THREADS, np.uint64(x.data.ptr), gemm, experts, shared_bytes=launch.shared_bytes
        )
        return out

    def _launch(
        self, x: Array, matrices: ExpertMatrices, store: int, ordered: SortedPairs, pairs: int
    ) -> _Gemm:
        first, width = matrices.first, ordered.tile.width
        packed = first.packed if isinstance(first, QuantizedStorage) else None
        gemm = {
            "weight": 0,
            "x_stride": x.strides[0] // BF16.itemsize,
            "rows": first.outputs,
            "inputs": first.inputs,
            "tokens": pairs,
        }
        return _Gemm(
            kernel=self._kernels.get(
                "experts", experts_entry(packed, width), *(() if packed is None else (packed.name,))
            ),
            grid=experts_grid(first.outputs, len(ordered.tiles)),
            shared_bytes=experts_shared_bytes(packed, width),
            gemm=GemmArguments(**gemm) if packed is None else quantized_arguments(packed, "linear", **gemm),
            experts=ExpertArguments(0, 0, 0, 0, store),
            columns=first.outputs // 2 if first.permutation == _INTERLEAVED else first.outputs,
        )

    def _lies_behind(self, experts: ExpertWeights) -> bool:
        if experts.shared is None or experts.gate_up_bias is not None or experts.down_bias is not None:
            return False
        pairs = zip((experts.gate_up, experts.down), experts.shared, strict=True)
        return all(self.matrices(matrices).is_followed_by(shared) for matrices, shared in pairs)

    def _check(self, x: Array, routing: Routing, experts: ExpertWeights, added: Array | None) -> None:
        into, down = self.matrices(experts.gate_up), self.matrices(experts.down)
        addresses = into.first.storage.data.ptr, down.first.storage.data.ptr
        optional = added is None, routing.shared_logits is None
        key = x.shape, x.strides, routing.experts.shape, addresses, optional
        if key in self._checked:
            return
        _check_tokens(x, into, added)
        _check_matrices(into, down, experts)
        shape = len(x), routing.experts.shape[1]
        require("mixture", "weights", routing.weights, shape, np.dtype(np.float32))
        if routing.shared_logits is not None:
            require("mixture", "shared_logits", routing.shared_logits, (len(x),), np.dtype(np.float32))
        remember(self._checked, key, True)


def _check_tokens(x: Array, into: ExpertMatrices, added: Array | None) -> None:
    inputs = into.first.inputs
    is_dense = x.ndim == 2 and x.dtype == BF16 and x.shape[1] == inputs and x.strides[0] % 16 == 0
    message = f"mixture: x is {list(x.shape)} {x.dtype}, must be [N, {inputs}] bf16 in dense rows"
    require_true(is_dense and x.strides[1] == BF16.itemsize, message)
    require_aligned("mixture", "x", x)
    if added is not None:
        require("mixture", "added", added, x.shape, BF16)


def _check_matrices(into: ExpertMatrices, down: ExpertMatrices, experts: ExpertWeights) -> None:
    is_gated = has_gate(experts.activation)
    permutation = _INTERLEAVED if is_gated else "plain"
    rows, inner = into.first.outputs, down.first.inputs
    fits = (
        into.first.permutation == permutation
        and down.first.permutation == "plain"
        and rows == inner * (2 if is_gated else 1)
        and down.first.outputs == into.first.inputs
        and down.count == into.count
        and inner % 8 == into.first.inputs % 8 == 0
    )
    shapes = f"[{rows}, {into.first.inputs}] and [{down.first.outputs}, {inner}]"
    require_true(fits, f"mixture: matrices {shapes} do not fit")
    for bias, matrices in ((experts.gate_up_bias, into), (experts.down_bias, down)):
        if bias is not None:
            require("mixture", "bias", bias, (matrices.count, matrices.first.outputs), BF16)
