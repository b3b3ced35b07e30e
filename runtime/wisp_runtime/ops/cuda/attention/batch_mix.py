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
        batch: the batch.
        has_decodes: whether any sequence has one query.
        has_prefills: whether any sequence has several.
    """

    batch: Batch
    has_decodes: bool
    has_prefills: bool

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Look at a batch; one computed as prompts are has prefills alone."""
        if batch.kind is StepKind.PREFILL:
            return cls(batch, False, True)
        starts = np.asarray(batch.query_starts_host)
        counts = starts[1:] - starts[:-1]
        return cls(batch, bool((counts == 1).any()), bool((counts > 1).any()))
