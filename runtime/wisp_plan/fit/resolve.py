"""Resolve a request against an amount of memory: every ``auto`` becomes a number or a format.

Pure arithmetic on the ledger. There is a result also when nothing fits: the smallest candidate, so that a
message can name the missing memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from wisp_plan.fit.request import FitRequest
from wisp_plan.memory.cache import model_groups, sequence_blocks
from wisp_plan.memory.ledger import Ledger, LedgerOptions, cache_of, compute_ledger
from wisp_plan.memory.limits import step_sizes
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import GIB

MIN_CONTEXT_TOKENS = 512
"""Minimum context of ``maxContext: auto``; with less, the model does not fit."""

COMFORT_CONTEXT_TOKENS = 4096
"""Context that a format or a step's width must allow; otherwise the next one is tried."""

FULL_CONTEXT_STEP_TOKENS = 2048
"""Width down to which steps give way to the model's full context, where ``maxContext`` is auto."""

CPU_KV_BYTES = GIB
"""KV cache of ``auto`` on the CPU, where memory is shared with other processes."""

CPU_CONTEXT_SHARE = 4
"""KV cache of one sequence of ``maxContext: auto`` on the CPU: at most this fraction of the available memory,
a quarter, or ``CPU_KV_BYTES`` if that is more. A config may name any context, and others need memory."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A resolved request.

    Attributes:
        required: ledger with KV blocks for one sequence of ``max_context`` tokens: the minimum that serves
            with steps of this width.
        available_bytes: available memory.
        max_context: tokens a sequence may hold.
        kv_limit_bytes: the user's limit of the KV cache, if any.
    """

    required: Ledger
    available_bytes: int
    max_context: int
    kv_limit_bytes: int | None

    @property
    def fits(self) -> bool:
        """Whether one sequence of ``max_context`` tokens can be served."""
        return self.headroom_bytes >= 0 and not self.exceeds_kv_limit

    @property
    def exceeds_kv_limit(self) -> bool:
        """Whether one sequence needs more KV cache than the user allows."""
        return self.kv_limit_bytes is not None and self.required.kv_cache_bytes > self.kv_limit_bytes

    @property
    def headroom_bytes(self) -> int:
        """Memory left beyond the minimum that serves; negative: missing memory."""
        return self.available_bytes - self.required.total_bytes


def resolve_step(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Candidate:
    """Resolve ``request``, whose concurrency is: the widest step that fits comfortably, else the best
    candidate, where nothing fits the closest one."""
    candidates = []
    for tokens in step_sizes(spec, request, available_bytes):
        candidate = _candidate(spec, request, tokens, available_bytes)
        if is_comfortable(spec, request, candidate):
            return candidate
        candidates.append(candidate)
    return max(candidates, key=score)


def with_full_context(
    spec: ModelSpec, request: FitRequest, candidate: Candidate, sequences: Sequence[int]
) -> Candidate:
    """Return a candidate with the model's full context; the given one if it has that, or none does.

    The widest step, down to :data:`FULL_CONTEXT_STEP_TOKENS`, with the first number of ``sequences`` that
    leaves it: one less wide costs each long prompt time, a place less costs where all are taken.
    """
    if candidate.max_context == spec.max_context or not candidate.fits:
        return candidate
    given = candidate.required.options.max_step_tokens
    for tokens in step_sizes(spec, request, candidate.available_bytes):
        if tokens > given or tokens < min(given, FULL_CONTEXT_STEP_TOKENS):
            continue
        for number in sequences:
            changed = replace(request, max_concurrent=number)
            full = _candidate_at(spec, changed, tokens, candidate.available_bytes, spec.max_context)
            if _is_allowed(changed, full):
                return full
    return candidate


def is_comfortable(spec: ModelSpec, request: FitRequest, candidate: Candidate) -> bool:
    """Return whether a candidate fits with the context asked for, or one of some length."""
    limit = request.max_context or min(spec.max_context, COMFORT_CONTEXT_TOKENS)
    return candidate.fits and candidate.max_context >= limit


def score(candidate: Candidate) -> tuple[bool, int, int]:
    """Return how good a candidate is: whether it fits, its context, and if not, how little it needs."""
    return candidate.fits, candidate.max_context, 0 if candidate.fits else -candidate.required.total_bytes


def _candidate_at(
    spec: ModelSpec, request: FitRequest, step_tokens: int, available_bytes: int, context: int
) -> Candidate:
    """Return the candidate of a context in steps of ``step_tokens`` tokens."""
    groups = model_groups(spec, request.kv)
    blocks = sequence_blocks(groups, context, request.block_tokens, step_tokens)
    options = request.ledger_options(context, blocks, step_tokens)
    return Candidate(compute_ledger(spec, options), available_bytes, context, request.kv_cache_bytes)


def _is_allowed(request: FitRequest, candidate: Candidate) -> bool:
    """Return whether a candidate fits, within what ``auto`` may take if its context is automatic."""
    if request.max_context is not None:
        return candidate.fits
    limit_bytes = auto_kv_bytes(request, candidate.available_bytes)
    return candidate.fits and candidate.required.kv_cache_bytes <= limit_bytes


def _candidate(spec: ModelSpec, request: FitRequest, step_tokens: int, available_bytes: int) -> Candidate:
    def at(context: int) -> Candidate:
        return _candidate_at(spec, request, step_tokens, available_bytes, context)

    if request.max_context is not None:
        return at(request.max_context)
    return _longest(spec.max_context, request.block_tokens, at, partial(_is_allowed, request))


def auto_kv_bytes(request: FitRequest, available_bytes: int) -> int:
    """Return the maximum of KV cache that one sequence of ``maxContext: auto`` may take."""
    if request.device != "cpu":
        return available_bytes
    return max(CPU_KV_BYTES, available_bytes // CPU_CONTEXT_SHARE)


def _longest(
    limit: int, block_tokens: int, at: Callable[[int], Candidate], is_allowed: Callable[[Candidate], bool]
) -> Candidate:
    """Find the longest context that is allowed: ``limit``, or a multiple of a block below it."""
    full = at(limit)
    if is_allowed(full):
        return full
    shortest = at(min(limit, MIN_CONTEXT_TOKENS))
    if not shortest.fits:
        return shortest
    low, high = shortest.max_context // block_tokens, -(-limit // block_tokens)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_allowed(at(middle * block_tokens)) else (low, middle)
    return at(low * block_tokens) if low * block_tokens > shortest.max_context else shortest


def allocate(spec: ModelSpec, request: FitRequest, candidate: Candidate) -> Ledger:
    """Return the ledger with all KV blocks that the process should allocate.

    A candidate that fits gets the user's setting, or all that is left (on the CPU: at most 1 GiB, or the need
    of one sequence); one that does not fit stays at the minimum that serves.
    """
    if not candidate.fits:
        return candidate.required
    required = candidate.required
    free_bytes = required.kv_cache_bytes + candidate.headroom_bytes + required.beyond_serving_bytes
    limit_bytes = free_bytes
    if request.kv_cache_bytes is not None:
        limit_bytes = request.kv_cache_bytes
    elif request.device == "cpu":
        limit_bytes = CPU_KV_BYTES
    options = required.options
    blocks = _max_blocks(spec, options, min(free_bytes, limit_bytes))
    return compute_ledger(spec, replace(options, kv_blocks=max(blocks, options.kv_blocks)))


def _max_blocks(spec: ModelSpec, options: LedgerOptions, limit_bytes: int) -> int:
    """Return the maximum of KV blocks within ``limit_bytes``; never less than the current number."""

    def fits(blocks: int) -> bool:
        return cache_of(spec, replace(options, kv_blocks=blocks)).size_bytes <= limit_bytes

    low, high = options.kv_blocks, options.kv_blocks + 1
    if not options.kv_blocks:
        return 0
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
