"""Sampling parameters to test with, the CPU's and the GPU's alike."""

from __future__ import annotations

import numpy as np

from wisp_runtime.batch import SamplingBatch


def batch(rows: int, **given) -> SamplingBatch:
    """Make parameters for ``rows`` rows, each neutral unless given."""
    neutral = {
        "temperature": np.ones(rows, np.float32),
        "top_k": np.zeros(rows, np.int32),
        "top_p": np.ones(rows, np.float32),
        "min_p": np.zeros(rows, np.float32),
        "seeds": np.arange(rows, dtype=np.uint64) + np.uint64(1 << 40),
        "steps": np.arange(rows, dtype=np.int64),
        "repetition_penalty": np.ones(rows, np.float32),
        "presence_penalty": np.zeros(rows, np.float32),
        "frequency_penalty": np.zeros(rows, np.float32),
        "count_starts": np.zeros(rows + 1, np.int32),
        "count_ids": np.zeros(0, np.int32),
        "counts": np.zeros(0, np.int32),
        "bias_starts": np.zeros(rows + 1, np.int32),
        "bias_ids": np.zeros(0, np.int32),
        "biases": np.zeros(0, np.float32),
    }
    filled = {
        name: np.full(rows, value, neutral[name].dtype) if np.isscalar(value) and name in neutral else value
        for name, value in given.items()
    }
    return SamplingBatch(**(neutral | filled))
