"""Kinds of sequences in a batch, which decide the attention kernels of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from wisp_runtime.batch import Batch, StepKind


@dataclass(frozen=True, slots=True)
class BatchMix:
    """Kinds of sequences in a batch.

    Attributes:
        kind, starts: the batch's kind and query starts; those of all its paged groups are the same objects.
        has_decodes: whether any sequence has one query.
        has_prefills: whether any sequence has several.
    """

    kind: StepKind | None
    starts: tuple[int, ...]
    has_decodes: bool
    has_prefills: bool

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Look at a batch; one computed as prompts are has prefills alone."""
        if batch.kind is StepKind.PREFILL:
            return cls(batch.kind, batch.query_starts_host, False, True)
        starts = np.asarray(batch.query_starts_host)
        counts = starts[1:] - starts[:-1]
        return cls(batch.kind, batch.query_starts_host, bool((counts == 1).any()), bool((counts > 1).any()))

    def is_of(self, batch: Batch) -> bool:
        """Return whether ``batch`` is the batch, or the same step for another paged group."""
        return self.starts is batch.query_starts_host and self.kind is batch.kind
