"""GGUF: each tensor names its type, a block of weights that holds its own scales; there is no section."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Never

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.families.reader import ConfigReader
from wisp_plan.gguf.tensor_types import BLOCK_TYPES
from wisp_plan.quantization.layer_names import LayerNames
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.quantization.scheme_reader import not_read
from wisp_plan.quantization.stored_format import VALUES, StoredPart

METHOD: Final = "gguf"


def read(config: ConfigReader) -> Never:
    """Refuse the section: a GGUF file has none.

    Raises:
        ConfigInvalid: always.
    """
    raise not_read(config, "quant_method", METHOD)


def quantization_of(tensors: Iterable[TensorInfo]) -> Quantization:
    """Return the quantization that the types of a model's tensors say, a rule a type."""
    layers: dict[str, list[str]] = {}
    for info in tensors:
        if info.dtype in BLOCK_TYPES:
            layers.setdefault(info.dtype, []).append(info.name.removesuffix(".weight"))
    rules = (Rule(LayerNames(exact=frozenset(names)), _scheme(dtype)) for dtype, names in layers.items())
    return Quantization(METHOD, tuple(rules))


def _scheme(dtype: str) -> Scheme:
    return Scheme(METHOD, "block", 1, BLOCK_TYPES[dtype].weights, is_packed=True, block_type=dtype)


def parts(scheme: Scheme) -> Iterator[StoredPart]:
    """Yield the tensor of a layer, whose elements are blocks."""
    yield StoredPart(VALUES, "{weight}", (scheme.block_type,), columns=scheme.columns)
