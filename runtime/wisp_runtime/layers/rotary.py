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
            tables = rope_tables(*key, np.arange(self._max_context))
            self._tables[key] = RopeTable(*map(self._ops.from_host, tables))
        return self._tables[key]


def rope_tables(rope: RopeSpec | None, size: int, positions: Array) -> tuple[Array, Array]:
    """Return cosines and sines of ``positions`` ``[S]``, times the amplitude: ``[S, size / 2]`` float32."""
    angles = positions[:, None] * rope_frequencies(rope, size)
    amplitude = 1.0 if rope is None else rope.amplitude
    cosines, sines = np.cos(angles) * amplitude, np.sin(angles) * amplitude
    return cosines.astype(np.float32), sines.astype(np.float32)


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
    if rope.kind == "yarn":
        divided = _yarn_ramp(rope, size)
        return frequencies * (1 - divided + divided / rope.factor)
    return frequencies


def _yarn_ramp(rope: RopeSpec, size: int) -> Array:
    """Return the share of each pair of channels that is divided by the factor: ``[size / 2]``, 0 to 1.

    It rises from the pair of ``beta_fast`` full periods in the trained context to that of ``beta_slow``.

    Source: Peng et al. 2023, arXiv:2309.00071, section 3.2, and its ``find_correction_range``.
    """
    low, high = (
        size * math.log(rope.original_max_context / (periods * 2 * math.pi)) / (2 * math.log(rope.theta))
        for periods in (rope.beta_fast, rope.beta_slow)
    )
    if rope.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low if high != low else 0.001  # as in that code: a step instead of a ramp
    return np.clip((np.arange(size // 2) - low) / width, 0, 1)
