"""Resolve a request against an amount of memory: every ``auto`` becomes a number or a format.

Pure arithmetic on the ledger. A trial always has an answer, also when nothing fits: then it is the
smallest thing that was asked for, so that a message can say how much is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from wisp_plan.fit.request import FitRequest
from wisp_plan.memory.cache import model_groups, sequence_blocks
from wisp_plan.memory.ledger import Ledger, LedgerOptions, cache_of, compute_ledger
from wisp_plan.memory.limits import step_sizes
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import GIB

MIN_CONTEXT_TOKENS = 512
"""The shortest context that ``maxContext: auto`` settles for; less than that is called not fitting."""

COMFORT_CONTEXT_TOKENS = 4096
"""A format, or a step's width, is left only when a context of this many tokens does not fit with it."""

CPU_KV_BYTES = GIB
"""What ``auto`` gives the KV cache on the CPU, where memory is shared with everything else."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A request, resolved.

    Attributes:
        required: the ledger with KV blocks for one sequence of ``max_context`` tokens: the least that serves
            with steps of this width.
        available_bytes: what there is.
        max_context: tokens a sequence may hold.
        kv_limit_bytes: bound on the KV cache that the user set, if any.
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
        """What is left beside the least that serves; negative is what is missing."""
        return self.available_bytes - self.required.total_bytes


def attempt(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Trial:
    """Resolve ``request``: the most faithful format that fits comfortably, else the best there is.

    Within a format the widest step that leaves room for that; where nothing fits, what is missing the least.
    """
    limit = request.max_context or min(spec.max_context, COMFORT_CONTEXT_TOKENS)
    trials = []
    for name, tokens in product(request.formats, step_sizes(spec, request, available_bytes)):
        trial = _attempt(spec, request, name, tokens, available_bytes)
        if trial.fits and trial.max_context >= limit:
            return trial
        trials.append(trial)
    return max(trials, key=_merit)


def _merit(trial: Trial) -> tuple[bool, int, int]:
    return trial.fits, trial.max_context, 0 if trial.fits else -trial.required.total_bytes


def _attempt(
    spec: ModelSpec, request: FitRequest, quantization: str, step_tokens: int, available_bytes: int
) -> Trial:
    groups = model_groups(spec, request.kv_format)

    def at(context: int) -> Trial:
        blocks = sequence_blocks(groups, context, request.block_tokens, step_tokens)
        options = request.ledger_options(quantization, context, blocks, step_tokens)
        return Trial(compute_ledger(spec, options), available_bytes, context, request.kv_cache_bytes)

    if request.max_context is not None:
        return at(request.max_context)
    return _longest(spec.max_context, request.block_tokens, at)


def _longest(limit: int, block_tokens: int, at: Callable[[int], Trial]) -> Trial:
    """Find the longest context that fits: ``limit``, or the largest multiple of a block below it."""
    whole = at(limit)
    if whole.fits:
        return whole
    shortest = at(min(limit, MIN_CONTEXT_TOKENS))
    if not shortest.fits:
        return shortest
    low, high = shortest.max_context // block_tokens, -(-limit // block_tokens)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle * block_tokens).fits else (low, middle)
    return at(low * block_tokens) if low * block_tokens > shortest.max_context else shortest


def allocate(spec: ModelSpec, request: FitRequest, trial: Trial) -> Ledger:
    """Return the ledger with all KV blocks that the process should allocate.

    A trial that fits gets what the user set, or all that is left (on the CPU: 1 GiB at most, or what one
    sequence needs); one that does not fit stays at the least that would serve.
    """
    if not trial.fits:
        return trial.required
    required = trial.required
    room_bytes = required.kv_cache_bytes + trial.headroom_bytes
    wanted_bytes = room_bytes
    if request.kv_cache_bytes is not None:
        wanted_bytes = request.kv_cache_bytes
    elif request.device == "cpu":
        wanted_bytes = CPU_KV_BYTES
    options = required.options
    blocks = _most_blocks(spec, options, min(room_bytes, wanted_bytes))
    return compute_ledger(spec, replace(options, kv_blocks=max(blocks, options.kv_blocks)))


def _most_blocks(spec: ModelSpec, options: LedgerOptions, limit_bytes: int) -> int:
    """Return the most KV blocks whose caches take no more than ``limit_bytes``; never less than there are."""

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
