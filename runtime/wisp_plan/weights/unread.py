"""Tensors beside a layer's weight that nothing reads: harmless, harmless where neutral, or refused.

Exporters leave more beside a quantized layer than its weights need. Dropping what changes them unread would
be another model, without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.errors import TensorsMismatch
from wisp_plan.quantization.config import GGUF
from wisp_plan.quantization.scheme import Scheme
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import WeightSpec
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.stored import as_stored, part_sources

Neutral = Literal["zeros", "ones", "middles", "ordered"]
"""Values that change nothing: 0; 1; a symmetric scheme's zero points; groups of columns in their order."""

HARMLESS = {
    # Activations are quantized by what they are, if at all.
    r"(input|act|activation|output)_(scale|zero_point|global_scale)",
    # Scales of the KV cache have a reader of their own (wisp_runtime/models/kv_scales.py).
    r"(q|k|v|kv|prob|prob_output)_(scale|zero_point|global_scale)",
    # It is compared with the model's when files are opened (wisp_runtime/weights/stated_shapes.py).
    r"weight_shape",
    # ModelOpt's calibration, of which the stored scales were made.
    r"(weight|input|output)_quantizer\._?(amax|global_amax|scale|double_scale)",
}
"""Tensors of a quantized layer that change none of its weights, by what follows its name."""

NEUTRAL: dict[str, Neutral] = {
    r"bias": "zeros",  # AutoGPTQ stores one of every layer
    r"(input_quantizer\._?)?pre_quant_scale": "ones",
    r"(weight_zero_point|qzeros)": "middles",  # GPTQ and AutoRound store those of symmetric layers too
    r"(weight_)?g_idx": "ordered",  # GPTQ stores it without act-order too
}
"""Tensors that change nothing where their values are neutral; others refuse the checkpoint."""

_MAX_COMPONENTS = 2  # after a layer's name


@dataclass(frozen=True, slots=True)
class NeutralTensor:
    """A tensor that nothing reads, as its values must be neutral.

    Attributes:
        tensor: the tensor.
        neutral: values that change nothing.
        scheme: scheme of its layer; None: it is not quantized.
    """

    tensor: TensorInfo
    neutral: Neutral
    scheme: Scheme | None


def neutral_tensors(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> tuple[NeutralTensor, ...]:
    """Return the unread tensors of layers whose values must be compared with neutral ones.

    Raises:
        TensorsMismatch: a quantized layer has a tensor that would change its weights in an unknown way.
    """
    if spec.quantization is not None and spec.quantization.method == GGUF:
        return ()  # its reader refuses tensors that are none of the architecture's
    weights = as_stored(declare(spec), tensors, spec.quantization)
    schemes, read = _layers(weights), set(_read(weights))
    return tuple(_unread(schemes, (tensors[name] for name in tensors if name not in read)))


def _unread(schemes: Mapping[str, Scheme | None], tensors: Iterable[TensorInfo]) -> Iterator[NeutralTensor]:
    for tensor in tensors:
        layer, suffix = _layer_of(tensor.name, schemes)
        if not layer:
            continue
        scheme = schemes[layer]
        neutral = next((values for pattern, values in NEUTRAL.items() if re.fullmatch(pattern, suffix)), None)
        if neutral in ("zeros", "ones") or (neutral is not None and scheme is not None):
            yield NeutralTensor(tensor, neutral, scheme)
        elif scheme is not None and not any(re.fullmatch(pattern, suffix) for pattern in HARMLESS):
            raise TensorsMismatch(
                f"{tensor.name} belongs to a quantized layer, whose weights may be others with it, but it "
                "is not read. Choose another checkpoint of the model."
            )


def _layers(weights: Iterable[WeightSpec]) -> dict[str, Scheme | None]:
    """Return the scheme of every module that has a weight, by its name; None: it is not quantized."""
    return {
        source.tensor.rpartition(".")[0]: source.scheme
        for weight in weights
        if weight.role != "bias"  # of a module whose weight is listed
        for source in weight.sources
    }


def _read(weights: Iterable[WeightSpec]) -> Iterator[str]:
    for weight in weights:
        for source in weight.sources:
            if source.stored is None:
                yield source.tensor
            else:
                yield from (part.tensor for part in part_sources(weight, source))


def _layer_of(name: str, layers: Mapping[str, Scheme | None]) -> tuple[str, str]:
    """Return the layer that a tensor belongs to, empty if it is none's, and what follows that."""
    layer = name
    for _ in range(_MAX_COMPONENTS):
        layer = layer.rpartition(".")[0]
        if layer in layers:
            return layer, name.removeprefix(f"{layer}.")
    return "", ""
