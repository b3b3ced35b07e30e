"""Tensors in which a checkpoint stores a quantized layer, or one whose matrices are transposed."""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.gguf.tensor_types import BLOCK_TYPES
from wisp_plan.quantization.scheme import Scheme

VALUES = "values"
"""Name of the stored part that holds the quantized weights themselves."""

SCALE_DTYPES = ("F32", "BF16", "F16")


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One of the tensors in which a checkpoint stores a quantized layer.

    Attributes:
        name: :data:`VALUES`, ``scale``, ``zero_point``, ``tensor_scale`` or ``group``.
        tensor: its name; ``{weight}`` stands for the unquantized tensor's, ``{layer}`` for that without
            ``.weight``.
        dtypes: dtypes that it may have, by safetensors' names.
        rows, columns: weights that one of its elements stands for along each axis; 0: the whole axis.
        tail: length of a last axis that is split off, as in MXFP4's ``[…, in / 32, 16]``; 0: none.
        is_transposed: whether its axes are ``[in, out]``.
        has_exponents: whether bytes (``U8``) are exponents: 2^(byte - 127).
        alias: another exporter's name for the tensor, like ``tensor``; empty: all name it alike.
    """

    name: str
    tensor: str
    dtypes: tuple[str, ...]
    rows: int = 1
    columns: int = 1
    tail: int = 0
    is_transposed: bool = False
    has_exponents: bool = False
    alias: str = ""


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """Format of a layer in a checkpoint that has other tensors for it than plain rows.

    Attributes:
        scheme: meaning of its numbers.
        parts: its tensors, the values first.
    """

    scheme: Scheme
    parts: tuple[StoredPart, ...]

    @property
    def is_quantized(self) -> bool:
        """Whether its numbers are not the weights themselves."""
        return self.scheme.kind != "plain"

    @property
    def name(self) -> str:
        """Name in messages: ``gptq int4``, ``fp8``, ``Q4_K``."""
        arrangement, kind = self.scheme.arrangement, self.scheme.kind
        return self.scheme.block_type or (kind if kind == arrangement else f"{arrangement} {kind}")

    @property
    def title(self) -> str:
        """Name for people, with the bits of a weight where they are a block's: ``Q4_K (4.5 bits)``."""
        block = BLOCK_TYPES.get(self.scheme.block_type)
        return self.name if block is None else f"{self.name} ({block.bits:.2g} bits)"
