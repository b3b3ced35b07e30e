"""Roofline lower bounds: bytes over bandwidth, or operations over rate, whichever takes longer.

The ceilings are measured ones, not the data sheet's (``tests/bench/baselines/README.md``). Weights are read
once a step, of experts those that its tokens are sent to, the KV cache once a sequence; recurrent state is
left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.cache import CacheGroup, model_groups
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.cache import State
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import WeightSource, WeightSpec
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.expert_reads import Hits, multiplied_share, read_share, uniform_hits
from wisp_plan.weights.held import AUTO, BF16, held_weights


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


def step_weight_bytes(spec: ModelSpec, weights: str, hits: Hits | None = None) -> int:
    """Count the bytes of weights that a step reads: all, except an embedding table that is not the head.

    Args:
        weights: formats of the projections by name, as a fit has them.
        hits: experts that the step sends tokens to; None: all.
    """
    return sum(
        int(_read_bytes(weight) * (1 if hits is None else read_share(weight, hits)))
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
    spec: ModelSpec,
    ceiling: Ceiling,
    *,
    batch: int,
    context: float,
    weights: str,
    kv: KvLayers | str,
    hits: Hits | None = None,
) -> float:
    """Return the lower bound of a step that decodes ``batch`` sequences of ``context`` tokens each.

    Args:
        hits: experts that it sends tokens to; None: as many as uniform routing hits.
    """
    hits = uniform_hits(spec, batch) if hits is None else hits
    moved = step_weight_bytes(spec, weights, hits) + batch * _cached_bytes(spec, kv, context)
    pair_flops = sum(
        min(context, attention.window or context) * _pair_flops(attention) for attention in _attentions(spec)
    )
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
    computed, attentions = prompt - cached, _attentions(spec)
    hits = uniform_hits(spec, sequences * computed)
    moved = step_weight_bytes(spec, weights, hits) + sequences * _cached_bytes(spec, kv, cached)
    pair_flops = sum(_pair_flops(each) * _computed_pairs(each, prompt, cached) for each in attentions[:-1])
    if attentions:
        pair_flops += _pair_flops(attentions[-1]) * min(prompt, attentions[-1].window or prompt)
    last_layer = _last_layer_weights(spec)
    each, once = _layer_weights(spec) - last_layer, last_layer + spec.vocab * spec.hidden
    projected_s = 2 * computed * each / ceiling.projection_flops_per_s(weights)
    rest_s = (2 * once + pair_flops) / ceiling.flops_per_s
    return max(moved / ceiling.bytes_per_s, sequences * (projected_s + rest_s))


def _layer_weights(spec: ModelSpec) -> float:
    """Count the projection weights that each token is multiplied with, without the head's."""
    return _multiplied(spec, "layers.", lambda _: True)


def _last_layer_weights(spec: ModelSpec) -> float:
    """Count the last layer's weights that only tokens with logits need: all but K's and V's."""
    last = f"layers.{len(spec.layers) - 1}."
    return _multiplied(spec, last, lambda source: not _KEYS_OR_VALUES.search(source.tensor))


def _multiplied(spec: ModelSpec, prefix: str, is_wanted: Callable[[WeightSource], bool]) -> float:
    """Count the elements of projections named ``prefix…`` that a token is multiplied with."""
    return sum(
        multiplied_share(spec, weight) * math.prod(map(len, source.slices))
        for weight in declare(spec)
        if weight.role == "projection" and weight.name.startswith(prefix)
        for source in weight.sources
        if is_wanted(source)
    )


def _attentions(spec: ModelSpec) -> list[AttentionSpec]:
    """Return the attention of each layer that has one."""
    mixers = (mixer for layer in spec.layers for mixer in layer.mixers)
    return [mixer for mixer in mixers if isinstance(mixer, AttentionSpec)]


def _cached_bytes(spec: ModelSpec, kv: KvLayers | str, tokens: float) -> float:
    """Count the bytes of keys and values that a token reads behind ``tokens`` others."""

    def seen(group: CacheGroup) -> float:
        return min(tokens, group.spec.window or tokens)

    return sum(
        seen(group) * group.token_bytes
        for group in model_groups(spec, kv)
        if not isinstance(group.spec, State)
    )


def _pair_flops(attention: AttentionSpec) -> int:
    """Operations of one layer for a (query, key) pair: one multiply-add a channel for score and for value."""
    return 4 * attention.query_size


def _computed_pairs(attention: AttentionSpec, prompt: int, cached: int) -> int:
    """Count the (query, key) pairs of a prompt's tokens behind those that are cached."""
    window = attention.window or prompt
    return _pairs(prompt, window) - _pairs(cached, window)


def _pairs(tokens: int, window: int) -> int:
    """Count the (query, key) pairs of a causal prompt, each query attending to at most ``window`` keys."""
    ramp = min(tokens, window)
    return ramp * (ramp + 1) // 2 + (tokens - ramp) * window


def phase_bytes(
    spec: ModelSpec, *, weights: str, kv: KvLayers | str, batch: int, context: int
) -> dict[str, int]:
    """Count the bytes of weights and KV cache that each phase of a decode step reads, all layers together.

    Of experts those that uniform routing hits.
    """
    element = 4 if weights == "float32" else 2  # float32 on the CPU
    phases, hits = {"attention": int(batch * _cached_bytes(spec, kv, context))}, uniform_hits(spec, batch)
    for weight in _held(spec, BF16 if weights == "float32" else weights):
        phase = next((phase for name, phase in _PHASE_OF.items() if name in weight.name), None)
        if weight.role == "projection" and phase:
            read = int(_read_bytes(weight) * read_share(weight, hits))
            phases[phase] = phases.get(phase, 0) + read * element // 2
        elif weight.role == "head" or (weight.role == "embedding" and spec.ties_embeddings):
            phases["head"] = _read_bytes(weight) * element // 2
    return phases


_PHASE_OF = {
    ".experts.": "experts",
    ".from_latent.": "experts",
    ".qkv.": "qkv",
    ".qkvz.": "mixer input",
    ".gates.": "mixer input",
    ".input.": "mixer input",
    ".output.": "output",
    ".gate_up.": "gate/up",
    ".up.": "gate/up",
    ".down.": "down",
}  # the first that a weight's name contains
