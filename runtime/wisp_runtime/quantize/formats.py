"""Formats that ``wisp-runtime quantize`` writes: tensors of a layer, and the section of ``config.json``.

All are compressed-tensors, which vLLM, SGLang and transformers read. INT8 is ``int-quantized``: rows of plain
int8, on which engines with int8 tensor cores multiply activations quantized a token, and others do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import ml_dtypes
import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.ops.reference.rounding import to_bf16
from wisp_runtime.quantize.encoding import (
    Encoded,
    RoundScale,
    fp8_rows,
    fp8_values,
    int4_groups,
    int4_values,
    int8_rows,
    int8_values,
    nvfp4_groups,
    nvfp4_values,
)

Encode = Callable[[Array, Array | None], Encoded]
"""``encode(rows, importance)``: numbers and scales of ``[R, K]`` float32, errors weighted by columns."""
Round = Callable[[Array, Array | None], Array]
"""``round(rows, importance)``: the weights ``[R, K]`` that are stored for those given."""


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor of the written checkpoint.

    Attributes:
        name, dtype, shape: entry of the file's header.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Stored tensors of one ``[N, K]`` weight.

    Attributes:
        values, scales: the numbers and their scales, rows of both belonging to rows of the weight.
        constants: further tensors with their values; that of the tensor scale is filled in when it is known.
    """

    values: OutputTensor
    scales: OutputTensor
    constants: tuple[tuple[OutputTensor, Array], ...] = ()

    @property
    def tensors(self) -> tuple[OutputTensor, ...]:
        """All of them, in the order of their names."""
        every = (self.values, self.scales, *(tensor for tensor, _ in self.constants))
        return tuple(sorted(every, key=lambda tensor: tensor.name))


@dataclass(frozen=True, slots=True)
class TargetFormat:
    """A format to quantize into.

    Attributes:
        name: name on the command line.
        form: compressed-tensors' name.
        weights, activations: its descriptions of the numbers; activations None: they stay as they are.
        groups: possible numbers of columns that share a scale, the largest first; 0: the whole row.
        has_tensor_scale: whether weights that are computed together share one more scale.
    """

    name: str
    form: str
    weights: Mapping[str, object]
    activations: Mapping[str, object] | None
    groups: tuple[int, ...]
    has_tensor_scale: bool = False

    def choose_group(self, elements: Mapping[int, int]) -> int:
        """Return how many columns share a scale: the group by which most weights can be quantized.

        One for all layers, because transformers takes the first group of a checkpoint for every layer.

        Args:
            elements: number of weights by their columns.
        """

        def quantized(group: int) -> int:
            return sum(count for columns, count in elements.items() if divides(group, columns))

        return max(self.groups, key=quantized)

    def layout(self, weight: str, shape: tuple[int, int], group: int, scale_dtype: str) -> Layout:
        """Return the stored tensors of a weight.

        Args:
            weight: name of the unquantized tensor, ``….weight``.
            shape: N and K.
            group: result of :meth:`choose_group`.
            scale_dtype: ``BF16`` or ``F16``, the dtype of an INT4 group's scale.
        """
        rows, columns = shape
        scale = f"{weight}_scale"
        match self.name:
            case "fp8":
                return Layout(OutputTensor(weight, "F8_E4M3", shape), OutputTensor(scale, "F32", (rows, 1)))
            case "int8":
                return Layout(OutputTensor(weight, "I8", shape), OutputTensor(scale, "F32", (rows, 1)))
            case "int4":
                return Layout(
                    OutputTensor(f"{weight}_packed", "I32", (rows, columns // 8)),
                    OutputTensor(scale, scale_dtype, (rows, columns // group)),
                    ((OutputTensor(f"{weight}_shape", "I64", (2,)), np.array(shape, np.int64)),),
                )
            case _:
                return Layout(
                    OutputTensor(f"{weight}_packed", "U8", (rows, columns // 2)),
                    OutputTensor(scale, "F8_E4M3", (rows, columns // group)),
                    ((OutputTensor(f"{weight}_global_scale", "F32", (1,)), np.zeros(1, np.float32)),),
                )

    def encoder(self, group: int, scale_dtype: str, tensor_scale: float) -> Encode:
        """Return the function that encodes rows ``[R, K]`` float32; arguments as of :meth:`layout`."""
        match self.name:
            case "fp8":
                return fp8_rows
            case "int8":
                return int8_rows
            case "int4":
                return partial(int4_groups, group=group, round_scale=ROUND_SCALE[scale_dtype])
            case _:
                return partial(nvfp4_groups, tensor_scale=tensor_scale)

    def rounder(self, group: int, scale_dtype: str, tensor_scale: float) -> Round:
        """Return the function from rows to the weights that they are encoded as."""
        match self.name:
            case "fp8":
                return fp8_values
            case "int8":
                return int8_values
            case "int4":
                return partial(int4_values, group=group, round_scale=ROUND_SCALE[scale_dtype])
            case _:
                return partial(nvfp4_values, tensor_scale=tensor_scale)

    def section(self, group: int, ignored: list[str]) -> dict[str, object]:
        """Return the ``quantization_config``.

        Args:
            group: result of :meth:`choose_group`.
            ignored: layers that are not quantized.
        """
        layers = {
            "targets": ["Linear"],
            "weights": {**self.weights, "group_size": group or None},
            "input_activations": dict(self.activations) if self.activations else None,
            "output_activations": None,
            "format": self.form,
        }
        return {
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
            "format": self.form,
            "config_groups": {"group_0": layers},
            "ignore": ignored,
            "kv_cache_scheme": None,
        }


def divides(group: int, columns: int) -> bool:
    """Whether columns split into groups of so many; 0 is the whole row."""
    return group == 0 or columns % group == 0


def _f16(scales: Array) -> Array:
    return np.minimum(scales, np.float32(65504)).astype(np.float16).astype(np.float32)


ROUND_SCALE: dict[str, RoundScale] = {"BF16": to_bf16, "F16": _f16}
"""Rounding to the dtype of an INT4 group's scale."""
STORED_SCALE = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F8_E4M3": np.dtype(np.uint8),
}
"""NumPy's dtype in which scales are written: the encoders give E4M3 as codes."""

_STATIC = {"symmetric": True, "dynamic": False}
_TOKEN = {"strategy": "token", "symmetric": True, "dynamic": True}
TARGETS = {
    target.name: target
    for target in (
        TargetFormat(
            "fp8",
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "channel", **_STATIC},
            {"num_bits": 8, "type": "float", **_TOKEN},
            (0,),
        ),
        TargetFormat(
            "int8",
            "int-quantized",
            {"num_bits": 8, "type": "int", "strategy": "channel", **_STATIC},
            {"num_bits": 8, "type": "int", **_TOKEN},
            (0,),
        ),
        TargetFormat(
            "int4",
            "pack-quantized",
            {"num_bits": 4, "type": "int", "strategy": "group", **_STATIC},
            None,
            (128, 64, 32),  # those that other engines have kernels for
        ),
        TargetFormat(
            "nvfp4",
            "nvfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", **_STATIC},
            None,
            (16,),
            has_tensor_scale=True,
        ),
    )
}
"""Every format by its name."""
