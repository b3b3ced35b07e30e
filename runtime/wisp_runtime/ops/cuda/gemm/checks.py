"""Refuse arrays that a GEMM kernel cannot take."""

from __future__ import annotations

from wisp_runtime.batch import Array
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import require, require_aligned, require_true
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.cuda.weights.quantized import QuantizedStorage


def check_tokens(op: str, x: Array, weight: PackedMatrix | QuantizedStorage) -> None:
    """Require ``x`` ``[N, in]`` bf16 in dense rows, a multiple of 16 bytes apart."""
    if x.ndim != 2 or x.shape[1] != weight.inputs or x.dtype != BF16:
        raise ShapeError(f"{op}: x is {list(x.shape)} {x.dtype}, must be [N, {weight.inputs}] {BF16}")
    row_bytes = weight.inputs * BF16.itemsize
    is_apart = x.strides[0] % 16 == 0 and x.strides[0] >= row_bytes and x.strides[1] == BF16.itemsize
    require_true(
        is_apart, f"{op}: x has strides {x.strides}, must have dense rows a multiple of 16 bytes apart"
    )
    require_aligned(op, "x", x)


def check_weight(op: str, weight: PackedMatrix | QuantizedStorage, bias: Array | None) -> None:
    """Require the row permutation and sizes that ``op`` reads, and a bias as long as the rows."""
    require_true(
        weight.inputs % 8 == 0, f"{op}: the matrix has {weight.inputs} columns, must be a multiple of 8"
    )
    require_aligned(op, "the packed matrix", weight.storage)
    if op in ("linear_swiglu", "linear_logits"):
        permutation = "gate_up_interleaved" if op == "linear_swiglu" else "plain"
        message = f"{op}: the matrix's rows are {weight.permutation}, must be {permutation}"
        require_true(weight.permutation == permutation, message)
    if weight.permutation == "gate_up_interleaved":
        fits = weight.outputs % 16 == 0
        require_true(fits, f"{op}: {weight.outputs} rows of gate and up, must be a multiple of 16")
    if bias is not None:
        require(op, "bias", bias, (weight.outputs,), BF16)
