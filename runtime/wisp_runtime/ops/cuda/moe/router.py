"""Choice of many tokens' experts: logits in float32, scores, the best K, and their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_plan.memory.buffers.moe import logit_stride
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.checks import remember
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.moe.arguments import ChooseArguments, RouterArguments
from wisp_runtime.ops.cuda.moe.plan import MANY_TOKENS, ROUTER_ROWS, choice_entry, router_shared_bytes
from wisp_runtime.ops.cuda.moe.router_weights import (
    RouterWeights,
    check_router,
    choice_arguments,
    router_arguments,
)
from wisp_runtime.ops.protocol.moe import Routing

_CONSTANTS = constants()
_THREADS, _CHOOSE_THREADS = _CONSTANTS["router_threads"], _CONSTANTS["choose_threads"]
_FLOAT32, _INT32 = np.dtype(np.float32), np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class _Plan:
    logits: Kernel
    grid: tuple[int, int, int]
    shared_bytes: int
    router: RouterArguments
    choose: Kernel
    choose_grid: tuple[int]
    choose_shared_bytes: int
    choice: ChooseArguments


class Router:
    """Route tokens, any number; :class:`.token_router.TokenRouter` is faster for few, with the same bits.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernels, self._workspace = device.kernels, device.workspace
        self._plans: dict[Any, _Plan] = {}

    def __call__(self, x: Array, weights: RouterWeights, spec: RouterSpec) -> Routing:
        """Return the experts of each row of ``x``; see :meth:`.protocol.moe.MoeOps.route`.

        Args:
            x: ``[N, D]`` bf16, N > 0; rows may be apart by any multiple of 16 bytes.
            weights: those of the router.
            spec: scores, choice and weights.

        Raises:
            ShapeError: an array differs from the above, or the kernels do not take the sizes.
        """
        key = x.shape, x.strides, weights.kind, spec
        plan = self._plans.get(key)
        if plan is None:
            check_router(x, weights, spec)
            plan = remember(self._plans, key, self._plan(x, weights, spec))
        array, shape, has_gate = self._workspace.array, (len(x), spec.chosen), weights.gate is not None
        logits = array("moe.logits", (len(x), logit_stride(spec.experts, has_gate=has_gate)), _FLOAT32)
        experts, factors = array("moe.experts", shape, _INT32), array("moe.weights", shape, _FLOAT32)
        gates = array("moe.gates", (len(x),), _FLOAT32) if has_gate else None
        router, choice = plan.router, plan.choice
        weights.point(router, choice.choice, x, logits)
        choice.logits, choice.gates = logits.data.ptr, None if gates is None else gates.data.ptr
        choice.choice.experts, choice.choice.weights = experts.data.ptr, factors.data.ptr
        plan.logits.launch(plan.grid, _THREADS, router, shared_bytes=plan.shared_bytes)
        plan.choose.launch(plan.choose_grid, _CHOOSE_THREADS, choice, shared_bytes=plan.choose_shared_bytes)
        return Routing(experts, factors, gates)

    def _plan(self, x: Array, weights: RouterWeights, spec: RouterSpec) -> _Plan:
        tokens, warps = len(x), _CHOOSE_THREADS // 32
        rows = spec.experts + (weights.gate is not None)
        router = router_arguments(x, weights, spec)
        choose = ChooseArguments(0, 0, router.stride, choice_arguments(weights, spec), tokens)
        return _Plan(
            logits=self._kernels.get("router_logits", f"router_logits{'_f32' if weights.is_float else ''}"),
            grid=(-(-tokens // MANY_TOKENS), -(-rows // ROUTER_ROWS), 1),
            shared_bytes=router_shared_bytes(MANY_TOKENS, is_float=weights.is_float),
            router=router,
            choose=self._kernels.get("choose_experts", f"choose_experts_{choice_entry(spec.experts)}"),
            choose_grid=(-(-tokens // warps),),
            choose_shared_bytes=warps * spec.experts * (2 if spec.groups > 1 else 1) * _FLOAT32.itemsize,
            choice=choose,
        )
