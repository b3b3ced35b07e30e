"""Cache of one layer: a mixer's state of a sequence.

A paged spec is a frozen dataclass with ``format``, ``window`` and ``block_shapes``, as :class:`PagedKV` is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from wisp_plan.kv_formats.format import ELEMENT_BYTES, KvFormat
from wisp_plan.kv_formats.plain import BF16

Shape = tuple[int, ...]


class Paged(Protocol):
    """Cache of a layer in blocks of tokens.

    Attributes:
        format: format of the elements.
        window: tokens that a query sees, its own included; None: all.
    """

    @property
    def format(self) -> KvFormat: ...
    @property
    def window(self) -> int | None: ...

    def block_shapes(self, block_tokens: int) -> tuple[Shape, ...]:
        """Return the shape of one block in each of the layer's arrays."""
        ...


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of every token, in blocks.

    Attributes:
        heads: KV heads.
        k_size, v_size: channels of a head's key and value.
        format: format of both; the mixer's is replaced by the served one.
        window: tokens that a query sees, its own included; None: all.
    """

    heads: int
    k_size: int
    v_size: int
    format: KvFormat = BF16
    window: int | None = None

    def block_shapes(self, block_tokens: int) -> tuple[Shape, ...]:
        """Return the shapes of a block of keys and of values."""
        k_elements, v_elements = self.format.row_elements(self.k_size), self.format.row_elements(self.v_size)
        return (self.heads, block_tokens, k_elements), (self.heads, block_tokens, v_elements)


@dataclass(frozen=True, slots=True)
class State:
    """Recurrent state: arrays of a fixed size for each sequence, whatever its length.

    Attributes:
        shapes: shape of each array.
        dtypes: dtype of each array; on the CPU all are float32.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence's state in one layer."""
        return sum(
            math.prod(shape) * ELEMENT_BYTES[dtype]
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )
