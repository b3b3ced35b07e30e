"""Formats in which a device holds a model's weights: as the checkpoint stores them, bf16, or rounded at load.

The arena, the ledger, the loader and every text about weights ask here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import lru_cache

from wisp_plan.errors import RequestInvalid
from wisp_plan.quantization.packed_format import (
    BLOCK_SCALE_ROWS,
    EXPERT_FORMATS,
    MAX_COLUMNS,
    PACKED_FORMATS,
    PackedFormat,
)
from wisp_plan.quantization.packed_scheme import int4_name, packed_scheme
from wisp_plan.quantization.scheme import Scheme
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import WeightSpec
from wisp_plan.weights.compact import compact_format
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.stored import as_stored

AUTO, BF16, FP8 = "auto", "bf16", "fp8"
COMPACT = "compact"
"""Resolution of ``auto`` on a CPU whose memory is too small for float32 (:mod:`.compact`)."""

ROUNDED = ("fp8", "int8", "int4", "nvfp4")
"""Formats to which unquantized projections can be rounded at load, as they are proposed: 8 bits before 4."""

_COLUMNS_AT_ONCE = 16  # of a step of the tensor cores


def held_format(weight: WeightSpec, request: str, formats: Collection[str]) -> PackedFormat | None:
    """Return the packed format of a weight; None: it is held in bf16, or in a dtype of its own.

    Args:
        weight: the weight as a checkpoint stores it.
        request: ``auto``: as it is stored; ``bf16``: dequantized; one of :data:`ROUNDED`. ``+fp8`` after it
            rounds the head of a model whose embeddings are not its head.
        formats: names of the packed formats that the device has kernels for.
    """
    request, _, head = request.partition("+")
    if weight.role == "head":
        request = head or BF16
    if weight.role not in ("projection", "head") or request == BF16:
        return None
    stored = None if weight.role == "head" else weight.stored
    if stored is None:
        is_quantized = any(source.is_quantized for source in weight.sources)
        is_kept = is_quantized or request == AUTO or not weight.is_rounded
        packed = None if is_kept else _rounded(request, weight.shape[-1])
    else:
        packed = packed_scheme(stored.scheme)
    if packed is None or packed.name not in formats or not _fits(packed, weight):
        return None
    return _of_experts(packed) if weight.is_of_experts else packed


def hold(
    weights: Iterable[WeightSpec], request: str, formats: Collection[str], *, is_quantized: bool = False
) -> tuple[WeightSpec, ...]:
    """Return the weights with the format in which the device holds each.

    Args:
        weights: weights as a checkpoint stores them.
        request, formats: arguments of :func:`held_format`.
        is_quantized: whether the checkpoint is; what it leaves unquantized is then not rounded either.
    """
    if request == COMPACT:
        return tuple(replace(weight, compact=compact_format(weight)) for weight in weights)
    projections, plus, head = request.partition("+")
    if is_quantized and projections != BF16:
        request = f"{AUTO}{plus}{head}"
    return tuple(replace(weight, held=held_format(weight, request, formats)) for weight in weights)


@lru_cache(maxsize=256)
def held_weights(spec: ModelSpec, request: str, formats: tuple[str, ...]) -> tuple[WeightSpec, ...]:
    """Return the weights of ``spec`` as a device holds them, by its ``quantization`` alone: without headers.

    Arguments are those of :func:`held_format`.
    """
    stored = as_stored(declare(spec), {}, spec.quantization)
    return hold(stored, request, formats, is_quantized=spec.quantization is not None)


def check_rounding(spec: ModelSpec, request: str) -> None:
    """Refuse to round a checkpoint that is quantized in another format.

    Raises:
        RequestInvalid: names both formats and the remedy.
    """
    if request not in ROUNDED or spec.quantization is None:
        return
    for rule in spec.quantization.rules:
        packed = packed_scheme(rule.scheme) if rule.scheme is not None else None
        if rule.scheme is not None and (packed is None or packed.name.partition("_")[0] != request):
            kind = rule.scheme.block_type or rule.scheme.kind
            names = ", ".join(dict.fromkeys((spec.quantization.method, kind)))
            raise RequestInvalid(
                f"quantization (--quantization): {request}, but the checkpoint is quantized already "
                f"({names}), and would lose more. Set it to auto, which holds it as stored, to bf16, or "
                "choose the model's unquantized checkpoint."
            )


def held_name(weights: Iterable[WeightSpec]) -> str:
    """Return the formats of projections by name, and a quantized head's: ``int4, bf16``, ``int4+fp8``."""
    names, heads = set[str](), ""
    for weight in weights:
        if weight.role == "projection":
            names.add(weight.held.shown_name if weight.held else BF16)
        elif weight.role == "head" and weight.held:
            heads = f"+{weight.held.name}"
    return (", ".join(sorted(names, key=lambda name: (name == BF16, name))) or BF16) + heads


def describe_held(weights: Iterable[WeightSpec]) -> str:
    """Return the formats of weights for people, those of most bytes first.

    For example ``fp8 (E4M3, 128 x 128) as stored; embeddings and head bf16``.
    """
    elements, dequantized = Counter[str](), Counter[str]()
    is_quantized, head = False, ""
    for weight in weights:
        if weight.role == "head" and weight.held:
            head = f"head {_described(weight)}"
        if weight.role != "projection":
            continue
        titles = [
            source.stored.title if source.stored and source.is_quantized else "" for source in weight.sources
        ]
        if weight.held is None and any(titles):
            for source, title in zip(weight.sources, titles, strict=True):
                dequantized[title or BF16] += math.prod(map(len, source.slices))
        else:
            elements[_described(weight)] += math.prod(weight.shape)
            is_quantized |= weight.held is not None
    if dequantized:
        stored = ", ".join(title for title, _ in dequantized.most_common() if title != BF16)
        elements[f"{BF16}, dequantized from {stored}"] = dequantized.total()
    names = [name for name, _ in elements.most_common()] or [BF16]
    if not is_quantized:
        return "; ".join([*names, *([head] if head else [])])
    kept = ["some projections"] * (BF16 in names) + ["embeddings"] + ["head"] * (not head)
    others = f"{' and '.join(filter(None, (', '.join(kept[:-1]), kept[-1])))} {BF16}"
    return "; ".join([*(name for name in names if name != BF16), *([head] if head else []), others])


def _described(weight: WeightSpec) -> str:
    stored, held = weight.stored, weight.held
    if held is None:
        return BF16
    return f"{_title(held)} rounded at load" if stored is None else f"{_title(held, stored.scheme)} as stored"


_NUMBERS = {"e4m3": "E4M3", "e2m1": "E2M1"}


def _title(packed: PackedFormat, scheme: Scheme | None = None) -> str:
    """Return a format's name, numbers and block of a scale; the checkpoint's block where it has one."""
    if scheme is not None and scheme.rows > 1:
        block = f"{scheme.rows} x {scheme.columns}"
    elif packed.group:
        block = f"groups of {packed.group}" + ", zero points" * packed.has_zero_points
    else:
        block = "a scale a row"
    numbers = f"{_NUMBERS[packed.numbers]}, " if packed.numbers in _NUMBERS else ""
    return f"{packed.name.partition('_')[0]} ({numbers}{block})"


def _rounded(request: str, columns: int) -> PackedFormat | None:
    return PACKED_FORMATS.get(int4_name(columns) if request == "int4" else request)


def _of_experts(packed: PackedFormat) -> PackedFormat:
    """Return the order that GEMMs of experts read fastest."""
    return EXPERT_FORMATS.get(f"{packed.name}_fields", packed)


def _fits(packed: PackedFormat, weight: WeightSpec) -> bool:
    """Return whether columns are not too many, fill steps and groups, and block scales fit each source."""
    columns = weight.shape[-1]
    if columns > MAX_COLUMNS or columns % _COLUMNS_AT_ONCE or columns % (packed.group or 1):
        return False
    return not packed.has_block_scales or all(
        not source.at[-2] % BLOCK_SCALE_ROWS for source in weight.sources
    )
