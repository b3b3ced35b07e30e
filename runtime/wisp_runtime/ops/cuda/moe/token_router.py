"""Experts of few tokens, their weights, and the order of the pairs, by one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_plan.memory.buffers.moe import logit_stride, route_arrivals
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.checks import remember
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.moe.arguments import RouteArguments, SortArguments
from wisp_runtime.ops.cuda.moe.plan import Tile, choice_entry, few_shared_bytes, route_grid
from wisp_runtime.ops.cuda.moe.router_weights import (
    RouterWeights,
    check_router,
    choice_arguments,
    router_arguments,
)
from wisp_runtime.ops.cuda.moe.sorting import SortedPairs, check_counts, sorted_pairs
from wisp_runtime.ops.protocol.moe import Routing

_THREADS = constants()["route_threads"]
_FLOAT32, _INT32 = np.dtype(np.float32), np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class _Plan:
    kernel: Kernel
    grid: tuple[int, int, int]
    shared_bytes: int
    stride: int
    arguments: RouteArguments


class TokenRouter:
    """Route and sort up to MAX_SPLIT_TOKENS tokens, with the bits of ``Router`` and ``PairSorter``.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernels, self._workspace = device.kernels, device.workspace
        self._plans: dict[Any, _Plan] = {}

    def __call__(
        self,
        x: Array,
        weights: RouterWeights,
        spec: RouterSpec,
        counts: Array | None,
        tile: Tile,
        *,
        has_shared: bool = False,
    ) -> tuple[Routing, SortedPairs]:
        """Return the experts of each row of ``x``, and their pairs in order.

        Args:
            x: ``[N, D]`` bf16, 0 < N <= 64; rows may be apart by any multiple of 16 bytes.
            weights: those of the router.
            spec: scores, choice and weights.
            counts: ``[2, E]`` int64 to which each expert's pairs, and 1 where there are any, are added.
            tile: tile of the experts' GEMMs.
            has_shared: whether the shared expert, number E, gets every token, behind the pairs.

        Raises:
            ShapeError: an array differs from the above, or the kernels do not take the sizes.
        """
        key = x.shape, x.strides, weights.kind, spec, counts is None, tile, has_shared
        plan = self._plans.get(key)
        if plan is None:
            check_router(x, weights, spec)
            check_counts(counts, spec.experts)
            plan = remember(self._plans, key, self._plan(x, weights, spec, tile, has_shared))
        array, shape, arguments = self._workspace.array, (len(x), spec.chosen), plan.arguments
        logits = array("moe.logits", (plan.grid[2], len(x), plan.stride), _FLOAT32)
        gates = None if weights.gate is None else array("moe.gates", (len(x),), _FLOAT32)
        routing = Routing(array("moe.experts", shape, _INT32), array("moe.weights", shape, _FLOAT32), gates)
        sizes = routing.experts, spec.experts, tile
        ordered = sorted_pairs(self._workspace, *sizes, has_shared=has_shared)
        weights.point(arguments.router, arguments.choice, x, logits)
        arguments.choice.experts = routing.experts.data.ptr
        arguments.choice.weights = routing.weights.data.ptr
        ordered.point(arguments.order, counts)
        arguments.gates = None if gates is None else gates.data.ptr
        arguments.arrivals = self._workspace.view(route_arrivals()).data.ptr
        plan.kernel.launch(plan.grid, _THREADS, arguments, shared_bytes=plan.shared_bytes)
        return routing, ordered

    def _plan(
        self, x: Array, weights: RouterWeights, spec: RouterSpec, tile: Tile, has_shared: bool
    ) -> _Plan:
        tokens, columns = x.shape
        has_gate, pairs = weights.gate is not None, tokens * spec.chosen
        stride = logit_stride(spec.experts, has_gate=has_gate)
        entry = f"route_tokens_{'f32_' if weights.is_float else ''}{choice_entry(spec.experts)}"
        order = SortArguments(0, 0, 0, 0, 0, 0, 0, pairs, spec.chosen, tile.width, has_shared)
        parts = router_arguments(x, weights, spec), choice_arguments(weights, spec), order
        return _Plan(
            self._kernels.get("route_tokens", entry),
            route_grid(tokens, spec.experts + has_gate, columns),
            few_shared_bytes(stride, spec, pairs, is_float=weights.is_float),
            stride,
            RouteArguments(*parts),
        )
