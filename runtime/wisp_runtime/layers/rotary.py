"""Rotary position embedding: a model's angles, in tables made once for every position."""

from __future__ import annotations

import math

import numpy as np

from wisp_plan.spec.model import ModelSpec, RopeSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.backend import Ops, Rotation


def rotation(ops: Ops, spec: ModelSpec) -> Rotation:
    """Return the angles of every position up to the model's ``max_context``."""
    size = spec.rope.rotary_size or spec.head_size
    angles = np.arange(spec.max_context)[:, None] * rope_frequencies(spec.rope, size)
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return Rotation(ops.from_host(cosines), ops.from_host(sines))


def rope_frequencies(rope: RopeSpec, size: int) -> Array:
    """Return the angle per position of each pair of channels: ``[size / 2]`` float64.

    Source: arXiv:2104.09864 eq. 15; llama3 scaling as in Meta's ``llama-models`` (``apply_scaling``):
    wavelengths beyond the trained context are divided by ``factor``, short ones kept, those between blended.
    """
    frequencies = rope.theta ** -(np.arange(0, size, 2) / size)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        turns = rope.original_max_context * frequencies / (2 * math.pi)
        blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        blend = np.clip(blend, 0, 1)
        return frequencies * (blend + (1 - blend) / rope.factor)
    return frequencies
