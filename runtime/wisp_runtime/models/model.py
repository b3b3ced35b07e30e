"""Interface between the engine and models of every family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.layers.expert_load import ExpertLoad
from wisp_runtime.ops.protocol.attention import RopeTable
from wisp_runtime.ops.protocol.weights.storage import NamedWeights


@dataclass(frozen=True, slots=True)
class Output:
    """Results of a forward pass, for the R rows whose logits are wanted.

    Attributes:
        logits: ``[R, V]`` float32.
        hidden: ``[R, D]``, the normed states that the logits were computed from; None where they never reach
            memory (the persistent kernel).
        states: ``[N, D]``, the normed states of all tokens; None unless the batch wants them.
    """

    logits: Array
    hidden: Array | None = None
    states: Array | None = None


class Model(Protocol):
    """A loaded model. Stateless between calls: all that a sequence leaves behind is in the cache."""

    spec: ModelSpec

    def forward(self, batch: Batch, cache: ModelCache, *, layers: int | None = None) -> Output:
        """Run one step: write the K and V of its tokens to ``cache`` and return logits.

        ``layers``: number of the first layers that run; None: all.
        """
        ...

    @property
    def expert_load(self) -> ExpertLoad:
        """Return the counters of the experts' load."""
        ...

    @property
    def weights(self) -> NamedWeights:
        """Return the weights by name, for a persistent decode kernel."""
        ...

    def rope_table(self, attention: AttentionSpec) -> RopeTable:
        """Return the cos/sin tables of an attention layer."""
        ...
