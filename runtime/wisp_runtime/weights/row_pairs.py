"""Order of a head's rows in GGUF files of Llamas: the two that RoPE pairs lie side by side."""

from __future__ import annotations

from wisp_runtime.batch import Array


def in_halves(rows: Array, head_rows: int) -> Array:
    """Return the rows of heads with their halves one after the other, as every other checkpoint has them.

    Args:
        rows: ``[R, ...]``, whole heads; row 2 i + h of each is row h Dh / 2 + i of the result.
        head_rows: Dh; 0: the rows are in this order already.
    """
    if not head_rows:
        return rows
    pairs = rows.reshape(-1, head_rows // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
