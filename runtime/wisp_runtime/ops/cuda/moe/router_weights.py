"""Weights of a router on the GPU, and the arguments that its kernels share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp_plan.hardware.kernel_limits import MAX_CHOSEN, MAX_EXPERTS, MAX_GROUPS, ROUTER_SCORES
from wisp_plan.memory.buffers.moe import logit_stride
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import require, require_aligned, require_true
from wisp_runtime.ops.cuda.moe.arguments import ChoiceArguments, RouterArguments

_FLOAT32 = np.dtype(np.float32)
_OP = "route"


@dataclass(frozen=True, slots=True)
class RouterWeights:
    """Weights of a router.

    Attributes:
        weight: ``[E, D]`` bf16 or float32, contiguous.
        bias, correction: ``[E]`` bf16 or float32, or None.
        gate: ``[1, D]`` of the dtype of ``weight``, a shared expert's, or None.
    """

    weight: Array
    bias: Array | None = None
    correction: Array | None = None
    gate: Array | None = None

    @property
    def is_float(self) -> bool:
        """Whether the weights are float32."""
        return bool(self.weight.dtype == _FLOAT32)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Shapes and dtypes: layers that have the same share a plan."""
        extras = self.bias, self.correction, self.gate
        return (
            *(self.weight.shape, self.weight.dtype),
            *((None if array is None else (array.shape, array.dtype)) for array in extras),
        )

    def point(self, router: RouterArguments, choice: ChoiceArguments, x: Array, logits: Array) -> None:
        """Point arguments to the weights, to tokens, and to their logits."""
        router.x, router.weight, router.out = x.data.ptr, self.weight.data.ptr, logits.data.ptr
        router.gate = None if self.gate is None else self.gate.data.ptr
        choice.bias = None if self.bias is None else self.bias.data.ptr
        choice.correction = None if self.correction is None else self.correction.data.ptr


def router_arguments(x: Array, weights: RouterWeights, spec: RouterSpec) -> RouterArguments:
    """Return the arguments of logits, pointers apart."""
    tokens, columns = x.shape
    stride = logit_stride(spec.experts, has_gate=weights.gate is not None)
    return RouterArguments(0, 0, 0, 0, x.strides[0] // BF16.itemsize, tokens, spec.experts, columns, stride)


def choice_arguments(weights: RouterWeights, spec: RouterSpec) -> ChoiceArguments:
    """Return the arguments of a choice, pointers apart."""
    extras = weights.bias, weights.correction
    return ChoiceArguments(
        *(0, 0, 0, 0, spec.experts, spec.chosen, spec.groups, spec.chosen_groups),
        *(array is not None and array.dtype == _FLOAT32 for array in extras),
        *(ROUTER_SCORES.index(spec.scores), spec.normalizes, spec.scale),
    )


def check_router(x: Array, weights: RouterWeights, spec: RouterSpec) -> None:
    """Require what the kernels take.

    Raises:
        ShapeError: an array has another shape, dtype or alignment, there are too many experts, or the
            kernels do not compute the scores.
    """
    known = ", ".join(ROUTER_SCORES)
    require_true(spec.scores in ROUTER_SCORES, f"{_OP}: scores are {spec.scores!r}, must be one of {known}")
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
    dtype = _known_dtype(weights.weight)
    require(_OP, "the router's weight", weights.weight, (experts, columns), dtype)
    if weights.gate is not None:
        require(_OP, "the shared expert's gate", weights.gate, (1, columns), dtype)
    for name, array in (("bias", weights.bias), ("correction", weights.correction)):
        if array is not None:
            require(_OP, name, array, (experts,), _known_dtype(array))


def _known_dtype(array: Array) -> Any:
    return array.dtype if array.dtype in (BF16, _FLOAT32) else BF16
