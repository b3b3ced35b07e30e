"""Remedies of a model that does not fit, each checked by resolving it.

Only changes that were resolved again and fit are proposed; formats are limited to those that the runtime can
serve (:attr:`FitRequest.formats_available`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from wisp_plan.errors import RequestInvalid
from wisp_plan.fit.concurrency import resolve
from wisp_plan.fit.request import FitRequest
from wisp_plan.fit.resolve import MIN_CONTEXT_TOKENS, Candidate
from wisp_plan.hardware.gpus import DEFAULT_FRACTION, DRIVER_BYTES, smallest_card
from wisp_plan.kv_formats.layers import KV_FORMATS
from wisp_plan.memory.cache import kv_bytes_per_token
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import GIB, MIB
from wisp_plan.weights.held import AUTO, BF16, ROUNDED


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that was checked and makes the model fit.

    Attributes:
        setting: field to change, as in ``spec.runtime``; ``gpu`` or ``memory`` for the hardware.
        value: new value of the field.
        text: both, in the words of a message.
    """

    setting: str
    value: str
    text: str


def find_remedies(spec: ModelSpec, request: FitRequest, candidate: Candidate) -> tuple[Remedy, ...]:
    """List changes that make ``request`` fit, the least intrusive first.

    One change of a setting where one suffices, else two together, else other hardware; where there are no
    kernels, that alone helps.
    """
    if not request.has_kernels:
        return (_hardware(request, candidate),)
    available = candidate.available_bytes
    singles = tuple(_single_changes(spec, request, available))
    if singles:
        return singles
    return tuple(_double_changes(spec, request, available)) or (_hardware(request, candidate),)


def _single_changes(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Iterator[Remedy]:
    changes = (_other_format, _other_kv_dtype, _other_context, _other_kv_memory, _other_concurrency)
    for change in changes:
        remedy = change(spec, request, available_bytes)
        if remedy is not None:
            yield remedy


def _double_changes(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Iterator[Remedy]:
    """Try the shorter context together with each narrower format, the most precise first."""
    for name in _narrower_formats(spec, request):
        changed = replace(request, quantization=name)
        remedy = _other_context(spec, changed, available_bytes)
        if remedy is not None:
            yield Remedy("quantization", name, f"quantization: {name} and {remedy.text}")
            return


def _narrower_formats(spec: ModelSpec, request: FitRequest) -> Iterator[str]:
    """Yield formats of fewer bits than the request's; of a quantized checkpoint only its own."""
    if request.device == "cpu":
        return
    if spec.quantization is not None:
        if request.quantization == BF16:
            yield AUTO
        return
    tried = PACKED_FORMATS.get(request.quantization)
    for name in ROUNDED:
        if name in request.formats_available and (tried is None or PACKED_FORMATS[name].bits < tried.bits):
            yield name


def _other_format(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Remedy | None:
    for name in _narrower_formats(spec, request):
        if resolve(spec, replace(request, quantization=name), available_bytes).fits:
            return Remedy("quantization", name, f"quantization: {name}")
    return None


def _other_kv_dtype(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Remedy | None:
    tried = kv_bytes_per_token(spec, request.kv)
    for name in (name for name in KV_FORMATS if name in request.kv_formats):
        changed = replace(request, kv_dtype=name)
        if not _is_servable(spec, changed) or kv_bytes_per_token(spec, changed.kv) >= tried:
            continue
        if resolve(spec, changed, available_bytes).fits:
            return Remedy("kvCacheDtype", name, f"kvCacheDtype: {name}")
    return None


def _is_servable(spec: ModelSpec, request: FitRequest) -> bool:
    try:
        request.check(spec)
    except RequestInvalid:
        return False
    return True


def _other_context(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Remedy | None:
    if request.max_context is None:
        return None
    candidate = resolve(spec, replace(request, max_context=None), available_bytes)
    if not candidate.fits or candidate.max_context >= request.max_context:
        return None
    return Remedy("maxContext", str(candidate.max_context), f"maxContext {candidate.max_context}")


def _other_kv_memory(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Remedy | None:
    if request.kv_cache_bytes is None:
        return None
    context = request.max_context or min(spec.max_context, MIN_CONTEXT_TOKENS)
    candidate = resolve(spec, replace(request, kv_cache_bytes=None, max_context=context), available_bytes)
    if not candidate.fits:
        return None
    size = f"{-(-candidate.required.kv_cache_bytes // MIB)}MiB"
    return Remedy("kvCacheMemory", size, f"a KV cache of {size}")


def _other_concurrency(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Remedy | None:
    fewer = 1 << (request.sequences - 1).bit_length()
    while (fewer := fewer // 2) >= 1:
        if resolve(spec, replace(request, max_concurrent=fewer), available_bytes).fits:
            return Remedy("maxConcurrent", str(fewer), f"maxConcurrent {fewer}")
    return None


def _hardware(request: FitRequest, candidate: Candidate) -> Remedy:
    """Name the memory that suffices when the default share of it may be used."""
    needed = candidate.required.total_bytes
    if request.device == "cpu":
        size = f"{math.ceil(needed / DEFAULT_FRACTION / GIB)} GiB"
        return Remedy("memory", size, f"{size} of free memory")
    size = f"{math.ceil((needed / DEFAULT_FRACTION + DRIVER_BYTES) / GIB)} GiB"
    card = smallest_card(needed)
    if card is None:
        return Remedy("gpu", size, f"a GPU of at least {size}, which is more than any card that has kernels")
    return Remedy("gpu", card.name, f"gpu: a card of at least {size} (e.g. {card.name})")
