"""Quantization of layers as a checkpoint's ``quantization_config`` describes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from wisp_plan.quantization.layer_names import LayerNames

Kind = Literal["fp8", "mxfp8", "int8", "int4", "mxfp4", "nvfp4", "block", "plain"]
"""Numbers that stand for the weights; a ``block`` has its scales among them, ``plain`` ones are weights."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Storage of a layer's weights.

    Attributes:
        arrangement: names and shapes of its tensors, by the ``quant_method`` that arranges them so.
        kind: kind of number.
        rows, columns: weights along each axis that share a scale; 0: the whole axis. A scale a tensor is
            (0, 0), a scale a row (1, 0), a block (128, 128), a group of 128 (1, 128).
        is_packed: whether several numbers share a stored word.
        has_zero_points: whether each scale has a zero point.
        stores_zero_minus_one: whether stored zero points are one less than those meant (GPTQ v1).
        nibble_rows: row, of a word's eight, of each of its nibbles, the lowest first (AWQ); empty: words of
            values hold columns, and those of zero points rows, in their order.
        divides_by_tensor_scale: whether a tensor's own scale divides, not multiplies (compressed-tensors).
        is_act_ordered: whether each column names its group (``g_idx``).
        block_type: name of the type of its blocks (GGUF); empty if there are none.
    """

    arrangement: str
    kind: Kind
    rows: int
    columns: int
    is_packed: bool = False
    has_zero_points: bool = False
    stores_zero_minus_one: bool = False
    nibble_rows: tuple[int, ...] = ()
    divides_by_tensor_scale: bool = False
    is_act_ordered: bool = False
    block_type: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """Layers, and the scheme in which they are stored; None: they are not quantized."""

    layers: LayerNames
    scheme: Scheme | None


@dataclass(frozen=True, slots=True)
class Quantization:
    """Quantized layers of a checkpoint, by its config.

    Attributes:
        method: its ``quant_method``.
        rules: the first that names a layer decides.
        kv: kind of number of a KV cache that the checkpoint has scales for; None: it has none.
    """

    method: str
    rules: tuple[Rule, ...]
    kv: Literal["fp8", "nvfp4"] | None = None
    _schemes: dict[str, Scheme | None] = field(init=False, repr=False, compare=False, default_factory=dict)

    def scheme_of(self, layer: str) -> Scheme | None:
        """Return the scheme of a layer; None: it is not quantized.

        Args:
            layer: name of its weight in the checkpoint, without ``.weight``.
        """
        if layer not in self._schemes:
            scheme = next((rule.scheme for rule in self.rules if layer in rule.layers), None)
            self._schemes[layer] = scheme
        return self._schemes[layer]
