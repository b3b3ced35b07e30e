"""Permutation of a weight's rows on a GPU, so that a GEMM's epilogue finds rows that belong together.

A device chooses it when weights are loaded; ``kernels/README.md`` says why. Layers never see it.
"""

from __future__ import annotations

from typing import Any, Literal

from wisp_plan.spec.weight import GateUpRows, RotaryRows

RowPermutation = Literal[
    "plain", "gate_up_interleaved", "rope_interleaved_128", "rope_interleaved_192", "rope_interleaved_256"
]

_ROPE: dict[int, RowPermutation] = {
    128: "rope_interleaved_128",
    192: "rope_interleaved_192",
    256: "rope_interleaved_256",
}


def fused_permutation(rows: GateUpRows | RotaryRows | None) -> RowPermutation:
    """Return the permutation of ``rows`` for which GEMMs apply SwiGLU or RoPE themselves.

    Heads of 64 fit a row tile as they are; other sizes need half a head to be a multiple of 32 rows.
    """
    if isinstance(rows, RotaryRows):
        return _ROPE.get(rows.head_size, "plain")
    return "gate_up_interleaved" if isinstance(rows, GateUpRows) else "plain"


def interleaved_head_size(permutation: RowPermutation) -> int:
    """Return the head size of a permutation that interleaves the halves of heads for RoPE, else 0."""
    return next((size for size, name in _ROPE.items() if name == permutation), 0)


def permuted_row(row: Any, rows: int, permutation: RowPermutation) -> Any:
    """Return the position of row ``row`` (an integer, or an array of them) of ``rows`` stacked rows.

    ``gate_up_interleaved``: eight rows of gate, the first half, and the matching eight rows of up alternate.
    ``rope_interleaved_<Dh>``: in each head of Dh rows, 32 of its first half and the 32 that rotate with them
    alternate; so Dh / 2 is a multiple of 32.
    """
    if permutation == "plain":
        return row
    if permutation == "gate_up_interleaved":
        half, row = divmod(row, rows // 2)
        return row // 8 * 16 + half * 8 + row % 8
    size = interleaved_head_size(permutation)
    assert size % 64 == 0, f"{permutation}: half a head is no multiple of 32 rows"
    half, channel = divmod(row % size, size // 2)
    return row - row % size + channel // 32 * 64 + half * 32 + channel % 32
