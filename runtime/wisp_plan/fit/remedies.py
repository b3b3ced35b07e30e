"""Find out what would make a model fit, by trying it.

Nothing is proposed that was not resolved again and found to fit; formats are bounded by what the runtime
can serve (:attr:`FitRequest.formats_available`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from wisp_plan.fit.request import FitRequest
from wisp_plan.fit.resolve import MIN_CONTEXT_TOKENS, Trial, attempt
from wisp_plan.hardware.gpus import DEFAULT_FRACTION, DRIVER_BYTES, smallest_card
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import GIB, MIB
from wisp_plan.weights.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that was tried and makes the model fit.

    Attributes:
        setting: the field to change, as in ``spec.runtime``; ``gpu`` or ``memory`` for the hardware.
        value: what to set it to.
        text: both, as a message says it.
    """

    setting: str
    value: str
    text: str


def find_remedies(spec: ModelSpec, request: FitRequest, trial: Trial) -> tuple[Remedy, ...]:
    """List what would make ``request`` fit where ``trial`` did not, the least intrusive first.

    One change of a setting where one suffices, else two together, else larger hardware.
    """
    available = trial.available_bytes
    singles = tuple(_single_changes(spec, request, available))
    if singles:
        return singles
    return tuple(_double_changes(spec, request, available)) or (_hardware(request, trial),)


def _single_changes(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Iterator[Remedy]:
    changes = (_other_format, _other_kv_dtype, _other_context, _other_kv_memory, _other_concurrency)
    for change in changes:
        remedy = change(spec, request, available_bytes)
        if remedy is not None:
            yield remedy


def _double_changes(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Iterator[Remedy]:
    """Try the shorter context together with each narrower format, the most faithful first."""
    for name in _narrower_formats(request):
        changed = replace(request, quantization=name)
        remedy = _other_context(spec, changed, available_bytes)
        if remedy is not None:
            yield Remedy("quantization", name, f"quantization: {name} and {remedy.text}")
            return


def _narrower_formats(request: FitRequest) -> Iterator[str]:
    tried = max((FORMATS[name].bits for name in request.formats), default=0)
    if request.quantization == "auto" or request.device == "cpu":
        return
    for name, weight_format in FORMATS.items():
        if name in request.formats_available and weight_format.bits < tried:
            yield name


def _other_format(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Remedy | None:
    for name in _narrower_formats(request):
        if attempt(spec, replace(request, quantization=name), available_bytes).fits:
            return Remedy("quantization", name, f"quantization: {name}")
    return None


def _other_kv_dtype(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Remedy | None:
    if request.kv_format != "bf16" or "fp8" not in request.kv_dtypes_available:
        return None
    if not attempt(spec, replace(request, kv_dtype="fp8"), available_bytes).fits:
        return None
    return Remedy("kvCacheDtype", "fp8", "kvCacheDtype: fp8")


def _other_context(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Remedy | None:
    if request.max_context is None:
        return None
    trial = attempt(spec, replace(request, max_context=None), available_bytes)
    if not trial.fits or trial.max_context >= request.max_context:
        return None
    return Remedy("maxContext", str(trial.max_context), f"maxContext {trial.max_context}")


def _other_kv_memory(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Remedy | None:
    if request.kv_cache_bytes is None:
        return None
    context = request.max_context or min(spec.max_context, MIN_CONTEXT_TOKENS)
    trial = attempt(spec, replace(request, kv_cache_bytes=None, max_context=context), available_bytes)
    if not trial.fits:
        return None
    size = f"{-(-trial.required.kv_cache_bytes // MIB)}MiB"
    return Remedy("kvCacheMemory", size, f"a KV cache of {size}")


def _other_concurrency(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Remedy | None:
    fewer = 1 << (request.max_concurrent - 1).bit_length()
    while (fewer := fewer // 2) >= 1:
        if attempt(spec, replace(request, max_concurrent=fewer), available_bytes).fits:
            return Remedy("maxConcurrent", str(fewer), f"maxConcurrent {fewer}")
    return None


def _hardware(request: FitRequest, trial: Trial) -> Remedy:
    """Name the memory that would do when the default share of it may be used."""
    needed = trial.required.total_bytes
    if request.device == "cpu":
        size = f"{math.ceil(needed / DEFAULT_FRACTION / GIB)} GiB"
        return Remedy("memory", size, f"{size} of free memory")
    size = f"{math.ceil((needed / DEFAULT_FRACTION + DRIVER_BYTES) / GIB)} GiB"
    card = smallest_card(needed)
    if card is None:
        return Remedy("gpu", size, f"a GPU of at least {size}, which is more than any card we know")
    return Remedy("gpu", card.name, f"gpu: a card of at least {size} (e.g. {card.name})")
