"""Roofline lower bounds: bytes over bandwidth, or operations over rate, whichever takes longer.

The ceilings are measured ones, not the data sheet's (``tests/bench/baselines/README.md``). Weights are read
once a step, the KV cache once a sequence.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.cache import kv_bytes_per_token
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec, dense_layer
from wisp_plan.spec.weight import WeightSpec
from wisp_plan.weights.held import AUTO, BF16, held_weights
from wisp_plan.weights.tensors import expected_tensors


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Ceilings of a GPU: bytes read a second, bf16 operations a second."""

    bytes_per_s: float
    flops_per_s: float

    def projection_flops_per_s(self, weights: str) -> float:
        """Return the operations a second of projections: FP8 doubles them, by the data sheet."""
        return self.flops_per_s * (2 if weights.startswith("fp8") else 1)


_KEYS_OR_VALUES = re.compile(r"\.[kv]_proj\.")

CEILINGS = {"H200": Ceiling(4.5e12, 790e12), "H100": Ceiling(3.0e12, 790e12)}
"""Ceilings by a part of the driver's name of the GPU."""


def ceiling_of(gpu: str | None) -> Ceiling | None:
    """Return the ceilings of a GPU, or None if they were not measured."""
    return next((ceiling for name, ceiling in CEILINGS.items() if gpu and name in gpu), None)


def step_weight_bytes(spec: ModelSpec, weights: str) -> int:
    """Count the bytes of weights that a step reads: all, except an embedding table that is not the head.

    Args:
        weights: formats of the projections by name, as a fit has them.
    """
    return sum(
        _read_bytes(weight)
        for weight in _held(spec, weights)
        if weight.role != "embedding" or spec.ties_embeddings
    )


def _held(spec: ModelSpec, weights: str) -> tuple[WeightSpec, ...]:
    """Return the weights as a device holds them that names its formats ``weights``."""
    projections, plus, head = weights.partition("+")
    names = tuple(projections.split(", "))
    request = BF16 if names[0] == BF16 else AUTO if spec.quantization else names[0].partition("_")[0]
    return held_weights(spec, f"{request}{plus}{head}", (*names, head))


def _read_bytes(weight: WeightSpec) -> int:
    if weight.held is None:
        return 2 * math.prod(weight.shape)
    return math.prod(weight.shape[:-2]) * weight.held.sections(*weight.shape[-2:])[2]


def decode_lower_bound_s(
    spec: ModelSpec, ceiling: Ceiling, *, batch: int, context: float, weights: str, kv: KvLayers | str
) -> float:
    """Return the lower bound of a step that decodes ``batch`` sequences of ``context`` tokens each."""
    attention, layers = _attention(spec), len(spec.layers)
    seen = min(context, attention.window or context)
    moved = step_weight_bytes(spec, weights) + batch * seen * kv_bytes_per_token(spec, kv)
    pair_flops = seen * _pair_flops(attention) * layers
    done = batch * (2 * _layer_weights(spec) + 2 * spec.vocab * spec.hidden + pair_flops)
    return max(moved / ceiling.bytes_per_s, done / ceiling.flops_per_s)


def prefill_lower_bound_s(
    spec: ModelSpec,
    ceiling: Ceiling,
    *,
    sequences: int,
    prompt: int,
    cached: int = 0,
    weights: str,
    kv: KvLayers | str,
) -> float:
    """Return the lower bound of computing prompts of which ``cached`` tokens are in the cache already.

    Only each prompt's last token needs logits, and of the last layer more than K and V.
    """
    attention, layers = _attention(spec), len(spec.layers)
    computed, window = prompt - cached, attention.window or prompt
    moved = step_weight_bytes(spec, weights) + sequences * min(cached, window) * kv_bytes_per_token(spec, kv)
    pairs = _pairs(prompt, window) - _pairs(cached, window)
    pairs_of_all = pairs * (layers - 1) + min(prompt, window)
    last_layer = _last_layer_weights(spec)
    each, once = _layer_weights(spec) - last_layer, last_layer + spec.vocab * spec.hidden
    projected_s = 2 * computed * each / ceiling.projection_flops_per_s(weights)
    rest_s = (2 * once + pairs_of_all * _pair_flops(attention)) / ceiling.flops_per_s
    return max(moved / ceiling.bytes_per_s, sequences * (projected_s + rest_s))


def _layer_weights(spec: ModelSpec) -> int:
    """Count the projection weights that each token is multiplied with, without the head's."""
    return sum(math.prod(tensor.shape) for tensor in expected_tensors(spec) if tensor.role == "projection")


def _last_layer_weights(spec: ModelSpec) -> int:
    """Count the last layer's weights that only tokens with logits need: all but K's and V's."""
    last = f".layers.{len(spec.layers) - 1}."
    return sum(
        math.prod(tensor.shape)
        for tensor in expected_tensors(spec)
        if tensor.role == "projection" and last in tensor.name and not _KEYS_OR_VALUES.search(tensor.name)
    )


def _attention(spec: ModelSpec) -> AttentionSpec:
    """Return the attention of all layers, which are equal in the models measured so far."""
    layer = dense_layer(spec)
    assert layer is not None, f"{spec.architecture} has layers that differ"
    return layer.attention


def _pair_flops(attention: AttentionSpec) -> int:
    """Operations of one layer for a (query, key) pair: one multiply-add a channel for score and for value."""
    return 4 * attention.query_size


def _pairs(tokens: int, window: int) -> int:
    """Count the (query, key) pairs of a causal prompt, each query attending to at most ``window`` keys."""
    ramp = min(tokens, window)
    return ramp * (ramp + 1) // 2 + (tokens - ramp) * window


def phase_bytes(
    spec: ModelSpec, *, weights: str, kv: KvLayers | str, batch: int, context: int
) -> dict[str, int]:
    """Count the bytes of weights and KV cache that each phase of a decode step reads, all layers together."""
    element = 4 if weights == "float32" else 2  # float32 on the CPU
    seen = min(context, _attention(spec).window or context)
    phases = {"attention": batch * seen * kv_bytes_per_token(spec, kv)}
    for weight in _held(spec, BF16 if weights == "float32" else weights):
        phase = next((phase for name, phase in _PHASE_OF.items() if name in weight.name), None)
        if weight.role == "projection" and phase:
            phases[phase] = phases.get(phase, 0) + _read_bytes(weight) * element // 2
        elif weight.role == "head" or (weight.role == "embedding" and spec.ties_embeddings):
            phases["head"] = _read_bytes(weight) * element // 2
    return phases


_PHASE_OF = {".qkv.": "qkv", ".output.": "output", ".gate_up.": "gate/up", ".down.": "down"}
