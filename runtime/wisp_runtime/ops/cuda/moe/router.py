"""Choice of each token's experts: logits in float32, scores, the best K, and their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_plan.hardware.kernel_limits import MAX_CHOSEN, MAX_EXPERTS, MAX_GROUPS
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import remember, require, require_aligned, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.cuda.moe.arguments import ChooseArguments, RouterArguments
from wisp_runtime.ops.cuda.moe.plan import choose_entry, router_grid, router_shared_bytes
from wisp_runtime.ops.protocol.moe import Routing

_CONSTANTS = constants()
_THREADS, _CHOOSE_THREADS = _CONSTANTS["router_threads"], _CONSTANTS["choose_threads"]
_FLOAT32, _INT32 = np.dtype(np.float32), np.dtype(np.int32)
_OP = "route"


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
    """Route tokens.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._kernels, self._workspace = device.kernels, device.workspace
        self._plans: dict[Any, _Plan] = {}

    def __call__(
        self, x: Array, weight: Array, spec: RouterSpec, bias: Array | None, correction: Array | None
    ) -> Routing:
        """Return the experts of each row of ``x``; see :meth:`.protocol.moe.MoeOps.route`.

        Args:
            x: ``[N, D]`` bf16, N > 0; rows may be apart by any multiple of 16 bytes.
            weight: ``[E, D]`` bf16 or float32, contiguous.
            spec: scores, choice and weights.
            bias, correction: ``[E]`` bf16 or float32, or None.

        Raises:
            ShapeError: an array differs from the above, or the kernels do not take the sizes.
        """
        extras = tuple(None if array is None else array.dtype for array in (bias, correction))
        key = x.shape, x.strides, weight.shape, weight.dtype, spec, extras
        plan = self._plans.get(key)
        if plan is None:
            _check(x, weight, spec, bias, correction)
            plan = remember(self._plans, key, self._plan(x, weight, spec, extras))
        shape = len(x), spec.chosen
        logits = self._workspace.array("moe.logits", (plan.grid[2], len(x), spec.experts), _FLOAT32)
        experts = self._workspace.array("moe.experts", shape, _INT32)
        weights = self._workspace.array("moe.weights", shape, _FLOAT32)
        router, choice = plan.router, plan.choice
        router.x, router.weight, router.out = x.data.ptr, weight.data.ptr, logits.data.ptr
        choice.logits, choice.experts, choice.weights = logits.data.ptr, experts.data.ptr, weights.data.ptr
        choice.bias = None if bias is None else bias.data.ptr
        choice.correction = None if correction is None else correction.data.ptr
        plan.logits.launch(plan.grid, _THREADS, router, shared_bytes=plan.shared_bytes)
        plan.choose.launch(plan.choose_grid, _CHOOSE_THREADS, choice, shared_bytes=plan.choose_shared_bytes)
        return Routing(experts, weights)

    def _plan(self, x: Array, weight: Array, spec: RouterSpec, extras: tuple[Any, ...]) -> _Plan:
        tokens, columns = x.shape
        width, grid = router_grid(tokens, spec.experts, columns)
        is_float, warps = weight.dtype == _FLOAT32, _CHOOSE_THREADS // 32
        entry = f"router_logits_{'f32_' if is_float else ''}n{width}"
        sizes = tokens, spec.experts, columns
        return _Plan(
            logits=self._kernels.get("router_logits", entry),
            grid=grid,
            shared_bytes=router_shared_bytes(width, is_float),
            router=RouterArguments(0, 0, 0, x.strides[0] // BF16.itemsize, *sizes),
            choose=self._kernels.get("choose_experts", choose_entry(spec.experts)),
            choose_grid=(-(-tokens // warps),),
            choose_shared_bytes=warps * spec.experts * _FLOAT32.itemsize if spec.groups > 1 else 0,
            choice=ChooseArguments(
                *(0, 0, 0, 0, 0, tokens, spec.experts, spec.chosen, grid[2]),
                *(spec.groups, spec.chosen_groups, *(dtype == _FLOAT32 for dtype in extras)),
                *(spec.scores == "sigmoid", spec.normalizes, spec.scale),
            ),
        )


def _check(x: Array, weight: Array, spec: RouterSpec, bias: Array | None, correction: Array | None) -> None:
    experts, columns = spec.experts, x.shape[1]
    limits = f"must be {MAX_CHOSEN} of {MAX_EXPERTS} at most"
    is_small = experts <= MAX_EXPERTS and spec.chosen <= min(experts, MAX_CHOSEN)
    require_true(is_small, f"{_OP}: {spec.chosen} of {experts} experts, {limits}")
    per_group = experts // spec.groups if spec.groups <= MAX_GROUPS and experts % spec.groups == 0 else 0
    require_true(
        spec.groups == 1 or per_group > 1, f"{_OP}: {experts} experts in {spec.groups} groups, must be even"
    )
    require_true(columns % 8 == 0, f"{_OP}: x has {columns} columns, must be a multiple of 8")
    is_apart = x.dtype == BF16 and x.strides[0] % 16 == 0 and x.strides[1] == BF16.itemsize
    require_true(is_apart, f"{_OP}: x is {x.dtype} of strides {x.strides}, must be bf16 in dense rows")
    require_aligned(_OP, "x", x)
    require(_OP, "the router's weight", weight, (experts, columns), _known_dtype(weight))
    for name, array in (("bias", bias), ("correction", correction)):
        if array is not None:
            require(_OP, name, array, (experts,), _known_dtype(array))


def _known_dtype(array: Array) -> Any:
    return array.dtype if array.dtype in (BF16, _FLOAT32) else BF16
