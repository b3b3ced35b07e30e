"""Decide whether a model fits a device, and say so in one sentence with numbers and the remedy.

The operator asks before a pod exists (on a card of the catalogue), the runtime before it reads a weight (on
the memory that is really free); both call :func:`check`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from wisp_plan.checkpoint.index import TensorIndex
from wisp_plan.fit.concurrency import resolve
from wisp_plan.fit.request import FitRequest
from wisp_plan.fit.resolve import Candidate, allocate
from wisp_plan.fit.sentences import message
from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.cache import CacheSizes
from wisp_plan.memory.ledger import Ledger
from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.stored import spec_as_stored
from wisp_plan.weights.tensors import check_tensors

if TYPE_CHECKING:
    from wisp_plan.fit.remedies import Remedy

__all__ = ["Fit", "FitRequest", "check"]


@dataclass(frozen=True, slots=True)
class Fit:
    """The verdict, and every ``auto`` resolved.

    Attributes:
        fits: whether at least one sequence of ``max_context`` tokens can be served.
        message: one sentence; when it does not fit it ends in the remedies.
        ledger: memory of the process with all KV blocks; when it does not fit, the minimum that serves.
        required_bytes: minimum for one sequence of ``max_context`` tokens in these steps, with the buffers,
            states and snapshots of ``max_concurrent``.
        available_bytes: available memory.
        device_name: name of the device, e.g. ``L4``.
        max_context: tokens a sequence may hold, prompt and completion together.
        max_concurrent: sequences in one step.
        max_step_tokens: tokens a step may compute.
        quantization: formats of the weights by name, such as ``int4, bf16``; on the CPU ``float32``.
        kv_dtype: format of keys and values.
        kv_blocks: P, blocks to allocate; 0 when it does not fit.
        block_tokens: Tb.
        remedies: changes that were checked and make it fit; empty when it fits.
        basis: source of the tensors: the checkpoint's headers, or config.json alone.
    """

    fits: bool
    message: str
    ledger: Ledger
    required_bytes: int
    available_bytes: int
    device_name: str
    max_context: int
    max_concurrent: int
    max_step_tokens: int
    quantization: str
    kv_dtype: str
    kv_blocks: int
    block_tokens: int
    remedies: tuple[Remedy, ...]
    basis: Literal["checkpoint", "config"]

    @property
    def headroom_bytes(self) -> int:
        """Memory left beyond the minimum that serves; negative: missing memory."""
        return self.available_bytes - self.required_bytes

    @property
    def kv(self) -> KvLayers:
        """Formats of the layers' keys and values."""
        return self.ledger.options.kv

    @property
    def cache(self) -> CacheSizes:
        """Caches to allocate."""
        return self.ledger.cache

    @property
    def max_concurrent_at_context(self) -> int:
        """Sequences of full ``max_context`` that run at a time."""
        limit = self.cache.sequences(self.max_context, self.max_step_tokens) if self.fits else 0
        return self.max_concurrent if limit is None else min(self.max_concurrent, limit)

    @property
    def context_at_max_concurrent(self) -> int:
        """Tokens that each of ``max_concurrent`` sequences can hold at a time."""
        if not self.fits:
            return 0
        return self.cache.tokens(self.max_concurrent, self.max_context, self.max_step_tokens)

    def to_dict(self) -> dict[str, object]:
        """Return the ledger as ``/state`` shows it (docs/contracts.md)."""
        return {
            "weightsBytes": self.ledger.weights_bytes + self.ledger.scales_bytes,
            "kvCacheBytes": self.ledger.cache.paged_bytes,
            "stateBytes": self.ledger.state_bytes,
            "snapshotBytes": self.ledger.snapshot_bytes,
            "workspaceBytes": self.ledger.workspace_bytes,
            "graphsBytes": self.ledger.graphs_bytes,
            "contextBytes": self.ledger.context_bytes,
            "loadingBytes": self.ledger.beyond_serving_bytes,
            "totalBytes": self.ledger.total_bytes,
            "availableBytes": self.available_bytes,
            "kvBytesPerToken": self.ledger.kv_bytes_per_token,
            "maxContext": self.max_context,
            "maxConcurrent": self.max_concurrent,
            "maxStepTokens": self.max_step_tokens,
            "maxConcurrentAtContext": self.max_concurrent_at_context,
            "headroomBytes": self.headroom_bytes,
            "fits": self.fits,
            "message": self.message,
            "weights": self.ledger.weight_description,
        }


def check(
    spec: ModelSpec,
    request: FitRequest,
    *,
    available_bytes: int,
    device_name: str,
    tensors: TensorIndex | None = None,
) -> Fit:
    """Decide whether ``spec`` can be served as requested within ``available_bytes``.

    Args:
        available_bytes: total that the process may use (``gpus.usable_bytes``, or free memory times
            ``--memory-fraction``).
        device_name: name in messages: ``L4``, or ``this machine``.
        tensors: tensors of the checkpoint; if given, they must be those that the model needs.

    Raises:
        RequestInvalid: the request cannot be satisfied by any amount of memory.
        TensorsMismatch: the checkpoint lacks tensors or has them in other shapes.
    """
    request.check(spec)
    if tensors is not None:
        check_tensors(spec, tensors.by_name)
        spec = spec_as_stored(spec, tensors.by_name)
    candidate = resolve(spec, request, available_bytes)
    resolved = replace(request, max_concurrent=candidate.required.options.max_concurrent)
    fits = candidate.fits and request.has_kernels
    remedies = () if fits else _remedies(spec, resolved, candidate)
    ledger = allocate(spec, resolved, candidate) if fits else candidate.required
    return Fit(
        fits=fits,
        message=message(spec, request, candidate, remedies, device_name),
        ledger=ledger,
        required_bytes=candidate.required.total_bytes,
        available_bytes=available_bytes,
        device_name=device_name,
        max_context=candidate.max_context,
        max_concurrent=ledger.options.max_concurrent,
        max_step_tokens=ledger.options.max_step_tokens,
        quantization=ledger.weight_format,
        kv_dtype=ledger.options.kv_dtype,
        kv_blocks=ledger.options.kv_blocks if fits else 0,
        block_tokens=request.block_tokens,
        remedies=remedies,
        basis="config" if tensors is None else "checkpoint",
    )


def _remedies(spec: ModelSpec, request: FitRequest, candidate: Candidate) -> tuple[Remedy, ...]:
    from wisp_plan.fit.remedies import find_remedies  # with the catalogue of GPUs

    return find_remedies(spec, request, candidate)
