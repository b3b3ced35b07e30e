"""Mixtures of experts among the ops of a GPU: :class:`.protocol.moe.MoeOps`."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from wisp_plan.memory.buffers.moe import MAX_JOINED_TOKENS, MAX_SPLIT_TOKENS, expert_counts
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16, to_host
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.moe.combination import Combination
from wisp_runtime.ops.cuda.moe.experts import Experts
from wisp_runtime.ops.cuda.moe.router import Router
from wisp_runtime.ops.cuda.moe.router_weights import RouterWeights
from wisp_runtime.ops.cuda.moe.sorting import PairSorter, SortedPairs
from wisp_runtime.ops.cuda.moe.token_router import TokenRouter
from wisp_runtime.ops.protocol.moe import ExpertResults, ExpertWeights, Routing


class CudaMoe:
    """Router and experts, as :class:`.ops.CudaOps` has them.

    Pairs of a token and an expert are sorted when they are routed, for the layer's one :meth:`mixture`.
    """

    _device: Gpu
    _sorted: SortedPairs | None = None
    _is_batch_invariant = False

    @cached_property
    def _router(self) -> Router:
        return Router(self._device)

    @cached_property
    def _token_router(self) -> TokenRouter:
        return TokenRouter(self._device)

    @cached_property
    def _sorter(self) -> PairSorter:
        return PairSorter(self._device)

    @cached_property
    def _experts(self) -> Experts:
        return Experts(self._device, has_wide=not self._is_batch_invariant)

    @cached_property
    def _combination(self) -> Combination:
        return Combination(self._device)

    def expert_counts(self, layers: int, experts: int) -> Array:
        """See :meth:`.protocol.moe.MoeOps.expert_counts`."""
        return self._device.workspace.view(expert_counts(layers, experts))

    def counts_on_host(self, counts: Array) -> Array:
        """See :meth:`.protocol.moe.MoeOps.counts_on_host`."""
        copied: Array = to_host(counts)
        return copied

    def joins_shared(self, experts: ExpertWeights, tokens: int) -> bool:
        """See :meth:`.protocol.moe.MoeOps.joins_shared`; a dense GEMM's sums have another order."""
        is_few = 0 < tokens <= MAX_JOINED_TOKENS
        return is_few and not self._is_batch_invariant and self._experts.joins_shared(experts)

    def route(
        self,
        x: Array,
        weight: Array,
        spec: RouterSpec,
        *,
        bias: Array | None = None,
        correction: Array | None = None,
        shared_gate: Array | None = None,
        counts: Array | None = None,
        joins_shared: bool = False,
    ) -> Routing:
        """See :meth:`.protocol.moe.MoeOps.route`."""
        if not len(x):
            array, shape = self._device.workspace.array, (0, spec.chosen)
            return Routing(array("moe.experts", shape, np.int32), array("moe.weights", shape, np.float32))
        weights = RouterWeights(weight, bias, correction, shared_gate)
        tile = self._experts.tile(len(x) * spec.chosen, spec.experts)
        if len(x) <= MAX_SPLIT_TOKENS:
            route = self._token_router
            routing, self._sorted = route(x, weights, spec, counts, tile, has_shared=joins_shared)
        else:
            routing = self._router(x, weights, spec)
            self._sorted = self._sorter(routing.experts, spec.experts, counts, tile)
        return routing

    def mixture(
        self,
        x: Array,
        routing: Routing,
        experts: ExpertWeights,
        added: Array | None = None,
        *,
        leaves_sum: bool = False,
    ) -> Array | ExpertResults:
        """See :meth:`.protocol.moe.MoeOps.mixture`."""
        if not len(x):
            return self._device.workspace.array("mixture", x.shape, BF16)
        ordered = self._sorted
        tile = self._experts.tile(routing.experts.size, len(experts.gate_up), experts)
        if ordered is None or ordered.experts is not routing.experts or ordered.tile != tile:
            assert ordered is None or not ordered.has_shared, "a mixture of another routing"
            ordered = self._sorter(routing.experts, len(experts.gate_up), tile=tile)
        self._sorted = None
        results = self._experts(x, routing, ordered, experts, added)
        return results if leaves_sum else self._combination(results)

    def combined(self, results: Array | ExpertResults) -> Array:
        """See :meth:`.protocol.moe.MoeOps.combined`."""
        return self._combination(results) if isinstance(results, ExpertResults) else results
