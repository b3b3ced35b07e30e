"""Sizes of a model's weights in a device's memory, and its number of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from wisp_plan.quantization.packed_format import PACKED_FORMATS, W8A8
from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.compact import compact_bytes, describe_compact
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.expert_reads import multiplied_share
from wisp_plan.weights.held import BF16, COMPACT, describe_held, held_name, held_weights
from wisp_plan.weights.layout import held_bytes

Device = Literal["cuda", "cpu"]
_CPU, _CODES = "float32", "byte codes"


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Memory for a model's weights.

    Attributes:
        weights: bytes of the weights themselves.
        scales: bytes of scales and zero points of the quantized ones.
        format: formats of the projections by name: ``bf16``, ``fp8``, ``int4, bf16``, ``float32``.
        description: the same for people, with what the checkpoint has.
    """

    weights: int
    scales: int
    format: str
    description: str


@lru_cache(maxsize=256)
def weight_bytes(
    spec: ModelSpec, quantization: str, device: Device, formats: tuple[str, ...] = tuple(PACKED_FORMATS)
) -> WeightBytes:
    """Count the bytes of all weights of ``spec`` in memory.

    Args:
        quantization: format of the projections (:func:`.held.held_format`); all else is held in bf16, or in a
            dtype of its own.
        device: ``cpu`` holds everything in float32, or codes (:mod:`.compact`); ``cuda`` adds the padding of
            :mod:`.layout`.
        formats: packed formats that the device has kernels for.
    """
    if device == "cpu" and quantization == COMPACT:
        weights = held_weights(spec, COMPACT, ())
        return WeightBytes(*compact_bytes(weights), _CODES, describe_compact(weights))
    if device == "cpu":
        held = describe_held(held_weights(spec, BF16, ())).replace(BF16, _CPU)
        return WeightBytes(parameters(spec) * 4, 0, _CPU, held)
    weights = held_weights(spec, quantization, formats)
    sizes = [held_bytes(weight) for weight in weights]
    return WeightBytes(
        sum(codes for codes, _ in sizes),
        sum(scales for _, scales in sizes),
        held_name(weights),
        describe_held(weights) + _tied_head(spec, quantization) + _lacking(spec, quantization, formats),
    )


def _tied_head(spec: ModelSpec, quantization: str) -> str:
    """Explain why a head that was to be rounded is not; empty: none was to be, or it is."""
    is_kept = "+" in quantization and spec.ties_embeddings
    return "; the head is the embedding table and stays bf16" if is_kept else ""


def _lacking(spec: ModelSpec, quantization: str, formats: tuple[str, ...]) -> str:
    """Name the formats in which a device with more kernels would hold weights; empty: there are none."""
    held = (weight.held for weight in held_weights(spec, quantization, tuple(PACKED_FORMATS)))
    names = dict.fromkeys(packed.shown_name for packed in held if packed is not None)
    lacking = ", ".join(name for name in names if name not in formats)
    return f"; no kernels for {lacking} on this GPU" if lacking else ""


@lru_cache(maxsize=256)
def code_columns(spec: ModelSpec, quantization: str, formats: tuple[str, ...]) -> int:
    """Return the inputs of the widest matrix whose activations may be E4M3, as it is; 0: there is none.

    Args:
        formats: packed formats that the device has kernels for, and W8A8 if it multiplies such activations.
    """
    if W8A8 not in formats:
        return 0
    weights = held_weights(spec, quantization, formats)
    widths = [weight.shape[-1] for weight in weights if weight.held and weight.held.numbers == "e4m3"]
    return max(widths, default=0)


def parameters(spec: ModelSpec) -> int:
    """Count the parameters of ``spec``; tied embeddings count once."""
    return sum(math.prod(weight.shape) for weight in declare(spec))


@lru_cache(maxsize=256)
def active_parameters(spec: ModelSpec) -> int:
    """Count the parameters that a token is computed with: of experts those that it chooses."""
    return sum(round(math.prod(weight.shape) * multiplied_share(spec, weight)) for weight in declare(spec))
