"""Resolve ``maxConcurrent: auto``: the sequences in one step, from the memory left for their KV cache.

The most that the cache can hold with 1,024 tokens each (or the context, if that is shorter), of the sizes
that decode steps are rounded up to, up to 256 on a GPU and 32 on the CPU. Sequences share the cache by need:
longer ones are served too, fewer at a time. Eight are allowed wherever their buffers fit, since with little
memory requests are short; fewer only where not even those fit.

Where ``maxContext`` is auto as well, up to half of the sequences give way to the model's full context: each
takes memory for recurrent states, snapshots and rows of buffers.
"""

from __future__ import annotations

from dataclasses import replace

from wisp_plan.fit.request import FitRequest
from wisp_plan.fit.resolve import (
    Candidate,
    allocate,
    is_comfortable,
    resolve_step,
    score,
    with_full_context,
)
from wisp_plan.memory.batch_buckets import buckets
from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.held import AUTO, COMPACT

AUTO_SEQUENCE_TOKENS = 1024
"""Tokens of a sequence, prompt and answer, for which ``auto`` keeps memory: a chat of some length."""

MAX_GPU_SEQUENCES, MAX_CPU_SEQUENCES = 256, 32
MIN_AUTO_SEQUENCES = 8
FULL_CONTEXT_SHARE = 2
"""Part of the automatic sequences that may give way to the model's full context: a half."""
_DECODED_TOKENS = 1  # of a sequence in a step: prompts are computed a few at a time


def resolve(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Candidate:
    """Resolve ``request``: its concurrency, then step and context (:func:`.resolve_step`).

    Where a CPU's memory holds a quantized checkpoint not comfortably in float32, in codes.
    """
    candidate = _resolve(spec, request, available_bytes)
    if request.device != "cpu" or request.quantization != AUTO or spec.quantization is None:
        return candidate
    if is_comfortable(spec, request, candidate):
        return candidate
    return max(candidate, _resolve(spec, replace(request, quantization=COMPACT), available_bytes), key=score)


def _resolve(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Candidate:
    sizes: tuple[int, ...] = buckets(_limit(request))
    if request.max_concurrent is not None:
        sizes = (request.max_concurrent,)
    low, high = 0, len(sizes)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if _serves(spec, request, sizes[middle], available_bytes) else (low, middle)
        )
    request = replace(request, max_concurrent=sizes[low])
    candidate = resolve_step(spec, request, available_bytes)
    if request.max_context is not None:
        return candidate
    least = max(sizes[low] / FULL_CONTEXT_SHARE, min(sizes[low], MIN_AUTO_SEQUENCES))
    fewer = [size for size in sizes[low::-1] if size >= least]
    return with_full_context(spec, request, candidate, fewer)


def _limit(request: FitRequest) -> int:
    """Return the most sequences that ``auto`` may give."""
    most = MAX_CPU_SEQUENCES if request.device == "cpu" else MAX_GPU_SEQUENCES
    bounds = (request.max_auto_concurrent, request.max_step_tokens)  # a step holds a token of each
    return min((most, *(bound for bound in bounds if bound is not None)))


def _serves(spec: ModelSpec, request: FitRequest, sequences: int, available_bytes: int) -> bool:
    """Return whether ``sequences`` fit, each with its share of the KV cache."""
    request = replace(request, max_concurrent=sequences)
    candidate = resolve_step(spec, request, available_bytes)
    if not candidate.fits or sequences <= MIN_AUTO_SEQUENCES:
        return candidate.fits
    ledger = allocate(spec, request, candidate)
    tokens = min(candidate.max_context, AUTO_SEQUENCE_TOKENS)
    at_a_time = ledger.cache.sequences(tokens, _DECODED_TOKENS)
    return at_a_time is None or at_a_time >= sequences
