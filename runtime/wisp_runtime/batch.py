"""What one engine step computes: the argument that travels from the runner down to the kernels.

A leaf: it names arrays, it makes none. On the CPU backend they are NumPy arrays, on CUDA they
are CuPy arrays; every consumer takes them as they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Array = Any  # numpy.ndarray or cupy.ndarray


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: N tokens of B sequences, packed without padding, sequence after sequence.

    Prefill chunks and single decode tokens mix freely; a sequence with one query token is a decode.

    Attributes:
        tokens: ``[N]`` int32, token ids.
        positions: ``[N]`` int32, position of each token in its sequence.
        slots: ``[N]`` int64, where each token's K and V go: ``block * Tb + offset``.
        query_starts: ``[B + 1]`` int32, sequence b owns tokens ``query_starts[b]:query_starts[b + 1]``.
        context_lengths: ``[B]`` int32, tokens of each sequence in the cache after this step.
        block_tables: ``[B, W]`` int32, KV blocks of each sequence in order; unused entries are 0.
        logit_rows: ``[R]`` int64, the rows of N whose logits are wanted.
        query_starts_host: the same as ``query_starts``, as plain integers.
        context_lengths_host: the same as ``context_lengths``, as plain integers.
    """

    tokens: Array
    positions: Array
    slots: Array
    query_starts: Array
    context_lengths: Array
    block_tables: Array
    logit_rows: Array
    query_starts_host: tuple[int, ...]
    context_lengths_host: tuple[int, ...]
