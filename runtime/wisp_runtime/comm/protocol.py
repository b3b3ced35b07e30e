"""Ranks of a model that is split over several devices (tensor parallelism).

A rank holds its share of the heads and of the ffn's inner channels, so the results of a mixer and of an ffn
are partial sums. :class:`wisp_runtime.models.decoder.Layer` sums them over the ranks; nothing else
communicates.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

from __future__ import annotations

from typing import Protocol

from wisp_runtime.batch import Array


class Comm(Protocol):
    """One rank's connection to the others.

    Attributes:
        rank: this rank, from 0.
        size: number of ranks.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Array) -> Array:
        """Return the sum of every rank's ``x`` ``[N, D]``, on the device's stream; may overwrite ``x``."""
        ...
