"""Weights of a quantized checkpoint as the CPU may hold them: a code of one or two bytes each, and scales.

Nothing is rounded: the codes are the checkpoint's own numbers, dequantized a tile at a time as they are
multiplied. That takes about a third of float32's memory, and twice its time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from wisp_plan.gguf.tensor_types import BLOCK_TYPES
from wisp_plan.quantization.compact_format import CompactFormat
from wisp_plan.quantization.scheme import Scheme
from wisp_plan.spec.weight import WeightSource, WeightSpec

_FLOAT32_BYTES = 4


def compact_format(weight: WeightSpec) -> CompactFormat | None:
    """Return the compact format of a weight as a checkpoint stores it; None: it is held in float32.

    Sources in several formats take the codes and the groups that hold all of them.
    """
    if not weight.is_matrix:
        return None
    layouts = [layout for source in weight.sources if (layout := _of_source(source)) is not None]
    if len(layouts) < len(weight.sources):
        return None
    return CompactFormat(
        "bf16" if any(layout.code == "bf16" for layout in layouts) else "int8",
        math.gcd(weight.shape[-1], *(layout.group for layout in layouts)),
        any(layout.has_minima for layout in layouts),
    )


def compact_bytes(weights: Iterable[WeightSpec]) -> tuple[int, int]:
    """Count the bytes of weights on the CPU, float32 or compact: of weights and codes, and of scales."""
    held = scales = 0
    for weight in weights:
        if weight.compact is None:
            held += math.prod(weight.shape) * _FLOAT32_BYTES
            continue
        *leading, outputs, inputs = weight.shape
        codes, *factors = weight.compact.sizes(outputs, inputs)
        matrices = math.prod(leading)
        held, scales = held + matrices * codes, scales + matrices * sum(factors)
    return held, scales


def describe_compact(weights: Iterable[WeightSpec]) -> str:
    """Return the formats of weights for people: ``Q4_K (4.5 bits) in codes of a byte; others float32``."""
    titles: dict[str, None] = {}
    for weight in weights:
        for source in weight.sources:
            if weight.compact is not None and source.stored is not None:
                size = "a byte" if weight.compact.code == "int8" else "two bytes"
                titles[f"{source.stored.title} in codes of {size}"] = None
    return "; ".join([*titles, "others float32"])


def _of_source(source: WeightSource) -> CompactFormat | None:
    scheme = source.scheme
    if scheme is None or scheme.is_act_ordered:
        return None
    if block := BLOCK_TYPES.get(scheme.block_type):
        return CompactFormat("int8", block.group, block.has_minima)
    return CompactFormat(_code(scheme), scheme.columns, False)


def _code(scheme: Scheme) -> Literal["int8", "bf16"]:
    """Return the dtype that holds a scheme's numbers, zero points subtracted; E2M1's doubled."""
    is_wide = scheme.kind in ("fp8", "mxfp8") or (scheme.kind == "int8" and scheme.has_zero_points)
    return "bf16" if is_wide else "int8"
