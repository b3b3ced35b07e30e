"""Remedies of a model that does not fit, each checked by resolving it.

Only changes that were resolved again and fit are proposed, and of each kind the smallest; formats are limited
to those that the runtime can serve (:attr:`FitRequest.formats_available`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from wisp_plan.errors import RequestInvalid
from wisp_plan.fit.concurrency import resolve
from wisp_plan.fit.request import FitRequest
from wisp_plan.fit.resolve import MIN_CONTEXT_TOKENS, Candidate
from wisp_plan.hardware.catalogue import Card
from wisp_plan.hardware.gpus import DEFAULT_FRACTION, DRIVER_BYTES, proposable_cards, usable_bytes
from wisp_plan.hardware.kernel_formats import kernel_formats
from wisp_plan.kv_formats.layers import KV_FORMATS
from wisp_plan.memory.cache import kv_bytes_per_token
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import GIB, MIB
from wisp_plan.weights.held import AUTO, BF16, ROUNDED

Changes = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that was checked and makes the model fit.

    Attributes:
        changes: fields to change, as in ``spec.runtime``, and their new values; ``gpu`` or ``memory`` for the
            hardware.
        text: the same in the words of a message.
    """

    changes: Changes
    text: str

    def __add__(self, other: Remedy) -> Remedy:
        """Return both together."""
        return Remedy((*self.changes, *other.changes), f"{self.text} and {other.text}")


Step = tuple[Remedy, FitRequest]
"""A change, and the request with it."""


def find_remedies(spec: ModelSpec, request: FitRequest, candidate: Candidate) -> tuple[Remedy, ...]:
    """List changes that make ``request`` fit, the least intrusive first.

    One change of a setting where one suffices; two together where only that keeps the context, or one alone
    does not help; else other hardware; where there are no kernels, that alone.
    """
    if request.has_kernels:
        available = candidate.available_bytes
        for search in (_single_changes, _shorter_and_narrower):
            if remedies := tuple(search(spec, request, available)):
                return remedies
    return (_hardware(spec, request, candidate),)


def _single_changes(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Iterator[Remedy]:
    narrower = [
        *_first_fit(spec, _formats(spec, request), available_bytes),
        *_first_fit(spec, _kv_dtypes(spec, request), available_bytes),
    ]
    yield from narrower or _first_fit(spec, _both_narrower(spec, request), available_bytes)
    for change in (_other_context, _other_kv_memory, _other_concurrency):
        yield from change(spec, request, available_bytes)


def _both_narrower(spec: ModelSpec, request: FitRequest) -> Iterator[Step]:
    """Yield a narrower format and a smaller KV format together, which keep the context."""
    for first, changed in _formats(spec, request):
        for second, both in _kv_dtypes(spec, changed):
            yield first + second, both


def _shorter_and_narrower(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Iterator[Remedy]:
    """Yield a shorter context together with the first format, and with the first KV format, that suffices."""
    for steps in (_formats(spec, request), _kv_dtypes(spec, request)):
        yield from _first_shorter(spec, steps, available_bytes)


def _first_fit(spec: ModelSpec, steps: Iterable[Step], available_bytes: int) -> Iterator[Remedy]:
    for remedy, changed in steps:
        if resolve(spec, changed, available_bytes).fits:
            yield remedy
            return


def _first_shorter(spec: ModelSpec, steps: Iterable[Step], available_bytes: int) -> Iterator[Remedy]:
    """Yield the first of ``steps`` that fits with a shorter context."""
    for remedy, changed in steps:
        for shorter in _other_context(spec, changed, available_bytes):
            yield remedy + shorter
            return


def _formats(spec: ModelSpec, request: FitRequest) -> Iterator[Step]:
    """Yield formats of fewer bits than the request's, in the order of :data:`.held.ROUNDED`.

    Of a quantized checkpoint only its own: rounding twice loses more.
    """
    if request.device == "cpu":
        if request.quantization == BF16 and spec.quantization is not None:
            yield _setting("quantization", AUTO), replace(request, quantization=AUTO)
        return
    tried = PACKED_FORMATS.get(request.quantization)
    names: list[str] = [AUTO] if request.quantization == BF16 else []
    if spec.quantization is None:
        names = [name for name in ROUNDED if tried is None or PACKED_FORMATS[name].bits < tried.bits]
    for name in names:
        if name == AUTO or name in request.formats_available:
            yield _setting("quantization", name), replace(request, quantization=name)


def _kv_dtypes(spec: ModelSpec, request: FitRequest) -> Iterator[Step]:
    """Yield KV formats of fewer bytes than the request's, those of most bytes first."""
    tried = kv_bytes_per_token(spec, request.kv)
    for name in (name for name in KV_FORMATS if name in request.kv_formats):
        changed = replace(request, kv_dtype=name)
        if _is_servable(spec, changed) and kv_bytes_per_token(spec, changed.kv) < tried:
            yield _setting("kvCacheDtype", name), changed


def _setting(field: str, value: str) -> Remedy:
    return Remedy(((field, value),), f"{field}: {value}")


def _is_servable(spec: ModelSpec, request: FitRequest) -> bool:
    try:
        request.check(spec)
    except RequestInvalid:
        return False
    return True


def _other_context(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Iterator[Remedy]:
    """Yield the longest context that fits, a multiple of a block's tokens or the shortest of ``auto``.

    ``auto`` may keep back memory, or float32 weights on a CPU, that a context which was asked for gets.
    """
    if request.max_context is None:
        return
    candidate = resolve(spec, replace(request, max_context=None), available_bytes)
    if not candidate.fits or candidate.max_context >= request.max_context:
        return
    low, high = candidate.max_context // request.block_tokens, -(-request.max_context // request.block_tokens)
    while high - low > 1:
        middle = (low + high) // 2
        longer = replace(request, max_context=middle * request.block_tokens)
        low, high = (middle, high) if resolve(spec, longer, available_bytes).fits else (low, middle)
    tokens = str(max(candidate.max_context, low * request.block_tokens))
    yield Remedy((("maxContext", tokens),), f"maxContext {tokens}")


def _other_kv_memory(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Iterator[Remedy]:
    if request.kv_cache_bytes is None:
        return
    context = request.max_context or min(spec.max_context, MIN_CONTEXT_TOKENS)
    candidate = resolve(spec, replace(request, kv_cache_bytes=None, max_context=context), available_bytes)
    if candidate.fits:
        yield _kv_memory(candidate)


def _kv_memory(candidate: Candidate) -> Remedy:
    """Return the change to the KV cache that a candidate needs."""
    size = f"{_mib(candidate)}MiB"
    return Remedy((("kvCacheMemory", size),), f"a KV cache of {size}")


def _mib(candidate: Candidate) -> int:
    return -(-candidate.required.kv_cache_bytes // MIB)


def _other_concurrency(spec: ModelSpec, request: FitRequest, available_bytes: int) -> Iterator[Remedy]:
    fewer = 1 << (request.sequences - 1).bit_length()
    while (fewer := fewer // 2) >= 1:
        if resolve(spec, replace(request, max_concurrent=fewer), available_bytes).fits:
            yield Remedy((("maxConcurrent", str(fewer)),), f"maxConcurrent {fewer}")
            return


def _hardware(spec: ModelSpec, request: FitRequest, candidate: Candidate) -> Remedy:
    """Name the memory that suffices when the default share of it may be used, and cards that have it."""
    if request.device == "cpu":
        size = f"{math.ceil(candidate.required.total_bytes / DEFAULT_FRACTION / GIB)} GiB"
        return Remedy((("memory", size),), f"{size} of free memory")
    more_cache = _kv_memory(candidate) if candidate.exceeds_kv_limit else None
    anywhere = replace(request, context_bytes=None, sm_count=None)
    if more_cache is not None:
        anywhere = replace(anywhere, kv_cache_bytes=_mib(candidate) * MIB)
    needed = _needed_by_formats(spec, anywhere)
    cards = [card for card in proposable_cards() if _holds(card, needed[kernel_formats(card.hardware)])]
    if cards and (least := needed[kernel_formats(cards[0].hardware)]):
        text = f"gpu: a card of at least {_size(least)} (e.g. {_examples(cards)})"
        remedy = Remedy((("gpu", cards[0].name),), text)
        return remedy if more_cache is None else remedy + more_cache
    size = _size(candidate)
    lacking = (
        "which is more than any card that has kernels" if any(needed.values()) else "with kernels for that"
    )
    return Remedy((("gpu", size),), f"a GPU of at least {size}, {lacking}")


def _needed_by_formats(spec: ModelSpec, request: FitRequest) -> dict[tuple[str, ...], Candidate | None]:
    """Return the least that serves ``request`` with each card's kernels; None where they do not serve."""
    needed: dict[tuple[str, ...], Candidate | None] = {}
    for formats in {kernel_formats(card.hardware) for card in proposable_cards()}:
        changed = replace(request, formats_available=formats)
        needed[formats] = resolve(spec, changed, 0) if _is_servable(spec, changed) else None
    return needed


def _holds(card: Card, least: Candidate | None) -> bool:
    return least is not None and least.required.total_bytes <= usable_bytes(card)


def _examples(cards: Sequence[Card]) -> str:
    """Name the first card; if no model has run on it, say so, and name the first on which one has."""
    if cards[0].support == "runs":
        return cards[0].name
    tried = next((f"; the {card.name} is tried" for card in cards if card.support == "runs"), "")
    return f"{cards[0].name}, on which no model has run yet{tried}"


def _size(candidate: Candidate) -> str:
    """Return the size of a card on which a candidate fits."""
    return f"{math.ceil((candidate.required.total_bytes / DEFAULT_FRACTION + DRIVER_BYTES) / GIB)} GiB"
