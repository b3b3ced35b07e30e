"""Rotary position embedding: cos/sin tables of every position, made once a model."""

from __future__ import annotations

import math

import numpy as np

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.rope import RopeSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.attention import RopeTable
from wisp_runtime.ops.protocol.ops import Ops


class RopeTables:
    """Tables on the device, one for each embedding that differs.

    Args:
        ops: the device.
        max_context: positions of a table.
    """

    def __init__(self, ops: Ops, max_context: int) -> None:
        self._ops, self._max_context = ops, max_context
        self._tables: dict[tuple[RopeSpec | None, int], RopeTable] = {}

    def of(self, attention: AttentionSpec) -> RopeTable:
        """Return the cos/sin tables of an attention layer's RoPE."""
        key = attention.rope, attention.rotary_size
        if key not in self._tables:
            angles = np.arange(self._max_context)[:, None] * rope_frequencies(*key)
            cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
            self._tables[key] = RopeTable(self._ops.from_host(cosines), self._ops.from_host(sines))
        return self._tables[key]


def rope_frequencies(rope: RopeSpec | None, size: int) -> Array:
    """Return the angle per position of each pair of channels: ``[size / 2]`` float64; without RoPE ``[0]``.

    Source: arXiv:2104.09864 eq. 15; llama3 scaling as in Meta's ``llama-models`` (``apply_scaling``):
    wavelengths beyond the trained context are divided by ``factor``, short ones kept, those between blended.
    """
    if rope is None:
        return np.zeros(0)
    frequencies = rope.theta ** -(np.arange(0, size, 2) / size)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        turns = rope.original_max_context * frequencies / (2 * math.pi)
        blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        blend = np.clip(blend, 0, 1)
        return frequencies * (blend + (1 - blend) / rope.factor)
    return frequencies
