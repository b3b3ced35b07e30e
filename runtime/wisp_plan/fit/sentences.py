"""Sentence of a verdict: what is needed, what there is, and the settings that would change it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wisp_plan.fit.concurrency import resolve
from wisp_plan.fit.request import FitRequest
from wisp_plan.fit.resolve import Candidate
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import format_size
from wisp_plan.weights.held import BF16

if TYPE_CHECKING:
    from wisp_plan.fit.remedies import Remedy

NOTABLE_SHARE = 20
"""Memory that fewer sequences would save is named where it is at least a twentieth of the need."""

NOTABLE_GAIN = 1.25
"""Context that one sequence alone would have is named where it is a quarter longer."""


def message(
    spec: ModelSpec, request: FitRequest, candidate: Candidate, remedies: tuple[Remedy, ...], device_name: str
) -> str:
    """Return one sentence, without its full stop; where the model does not fit it ends in the remedies.

    Args:
        request: the user's request, whose ``auto`` are not resolved.
    """
    device = device_name if device_name.startswith(("the ", "this ")) else f"the {device_name}"
    needs = f"needs {format_size(candidate.required.total_bytes)}"
    if candidate.required.weight_format not in (BF16, "float32"):
        needs += f" with weights in {candidate.required.weight_format}"
    has = f"{device} has {format_size(candidate.available_bytes)} free"
    advice = ", or ".join(remedy.text for remedy in remedies)
    if not request.has_kernels:
        return f"{needs}, and there are no kernels for {device}; fits with {advice}"
    if candidate.fits:
        context = f"a context of {candidate.max_context} tokens{_shortened(spec, request, candidate)}"
        return f"{needs} for {context}{_room(spec, request, candidate)}, {has}"
    if candidate.headroom_bytes >= 0 and candidate.kv_limit_bytes is not None:
        cache, allowed = format_size(candidate.required.kv_cache_bytes), format_size(candidate.kv_limit_bytes)
        return (
            f"a context of {candidate.max_context} tokens needs a KV cache of {cache}, the limit set for it "
            f"is {allowed}; fits with {advice}"
        )
    return f"{needs}, {has}; fits with {advice}"


def _shortened(spec: ModelSpec, request: FitRequest, candidate: Candidate) -> str:
    """Say why an automatic context is not the model's, and which setting gives that, or a longer one."""
    if request.max_context is not None or candidate.max_context == spec.max_context:
        return ""
    full = resolve(spec, replace(request, max_context=spec.max_context), candidate.available_bytes)
    why = "more than a quarter of the memory holds" if request.device == "cpu" else "which would need more"
    if full.fits:
        options = full.required.options
        cost = f"{options.max_concurrent} at a time in steps of {options.max_step_tokens} tokens"
        fits = f"maxContext {spec.max_context} fits too, {cost}"
        why = f", {why}; {fits}" if request.device == "cpu" else f"; {fits}"
    elif longer := _alone(spec, request, candidate):
        why = f", {why}; maxConcurrent 1 gives {longer}"
    else:
        why = f", {why}"
    return f" (of the model's {spec.max_context}{why})"


def _alone(spec: ModelSpec, request: FitRequest, candidate: Candidate) -> int:
    """Return the context of one sequence at a time where that is notably longer than the candidate's; else 0.

    Each of the automatic sequences of a hybrid takes as much as thousands of tokens for its states.
    """
    if request.max_concurrent is not None:
        return 0
    alone = resolve(spec, replace(request, max_concurrent=1), candidate.available_bytes).max_context
    return alone if alone > candidate.max_context * NOTABLE_GAIN else 0


def _room(spec: ModelSpec, request: FitRequest, candidate: Candidate) -> str:
    """Name the automatic number of sequences that the need has room for, where one alone needs less."""
    sequences = candidate.required.options.max_concurrent
    if request.max_concurrent is not None or sequences == 1:
        return ""
    alone = replace(request, max_concurrent=1, max_context=candidate.max_context)
    least_bytes = resolve(spec, alone, candidate.available_bytes).required.total_bytes
    if candidate.required.total_bytes - least_bytes < candidate.required.total_bytes // NOTABLE_SHARE:
        return ""
    return f" and room for {sequences} at a time ({format_size(least_bytes)} with maxConcurrent 1)"
