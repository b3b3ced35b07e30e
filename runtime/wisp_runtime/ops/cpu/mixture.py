"""Mixture of experts on the CPU: tokens grouped by expert, a bounded number at a time."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

import numpy as np

from wisp_plan.memory.buffers.cpu import MAX_EXPERT_ROWS
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops import reference
from wisp_runtime.ops.cpu.compact import CompactMatrix
from wisp_runtime.ops.cpu.packed import PackedMatrix
from wisp_runtime.ops.cpu.row_tiles import linear_by_tiles, multiply_by_tiles
from wisp_runtime.ops.cpu.threads import Workers
from wisp_runtime.ops.protocol import checks
from wisp_runtime.ops.protocol.moe import ExpertWeights, Routing


class Mixture:
    """Router and experts as :class:`.ops.CpuOps` has them."""

    _workers: Workers | None

    def expert_counts(self, layers: int, experts: int) -> Array:
        """Allocate zeros."""
        return np.zeros((layers, 2, experts), np.int64)

    def counts_on_host(self, counts: Array) -> Array:
        """Return a copy: host and device are one."""
        copied: Array = counts.copy()
        return copied

    def joins_shared(self, experts: ExpertWeights, tokens: int) -> bool:  # noqa: ARG002
        """Return False: the shared expert's result comes with ``added``."""
        return False

    def route(
        self,
        x: Array,
        weight: Array,
        spec: RouterSpec,
        *,
        bias: Array | None = None,
        correction: Array | None = None,
        shared_gate: Array | None = None,
        counts: Array | None = None,
        joins_shared: bool = False,  # noqa: ARG002 (no shared expert is multiplied beside others)
    ) -> Routing:
        """See :func:`.reference.choose_experts`."""
        checks.router(x, weight, spec, bias, correction, shared_gate, counts)
        logits = multiply_by_tiles(x, weight.T)
        if bias is not None:
            logits += bias
        shared = None if shared_gate is None else multiply_by_tiles(x, shared_gate.T)[:, 0]
        routing = Routing(*reference.choose_experts(logits, spec, correction), shared)
        if counts is not None:
            tokens = np.bincount(routing.experts.reshape(-1), minlength=spec.experts)
            counts += (tokens, tokens > 0)
        return routing

    def mixture(
        self,
        x: Array,
        routing: Routing,
        experts: ExpertWeights,
        added: Array | None = None,
        *,
        leaves_sum: bool = False,  # noqa: ARG002 (nothing is left to another op)
    ) -> Array:
        """See :func:`.reference.mixture`."""
        checks.mixture(x, routing, experts, added)
        compute = partial(self._expert, experts)
        if added is not None and routing.shared_logits is not None:
            added = reference.scale_rows(added, routing.shared_logits[:, None])
        routed = routing.experts, routing.weights
        return reference.mixture(x, *routed, compute, added, max_rows=MAX_EXPERT_ROWS)

    @abstractmethod
    def linear(self, x: Array, weight: PackedMatrix | CompactMatrix, bias: Array | None = None) -> Array:
        """See :func:`.reference.linear`."""

    def from_latent(
        self, x: Array, weight: PackedMatrix | CompactMatrix, added: Array | None = None
    ) -> Array:
        """See :func:`.reference.linear`; ``added`` is added in place."""
        out = self.linear(x, weight)
        if added is not None:
            checks.same_shape("added", added, out.shape)
            out += added
        return out

    def combined(self, results: Array) -> Array:
        """Return ``results``: they are added up."""
        return results

    def _expert(self, experts: ExpertWeights, index: int, rows: Array) -> Array:
        """Return the results of one expert, ``[R, D]``."""
        biases = experts.gate_up_bias, experts.down_bias
        into, out = (None if bias is None else bias[index] for bias in biases)
        inner = linear_by_tiles(rows, experts.gate_up[index], into, self._workers)
        gated = reference.activate(inner, experts.activation)
        return linear_by_tiles(gated, experts.down[index], out, self._workers)
