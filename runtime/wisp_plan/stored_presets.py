"""Published models as if their checkpoints stored the weights in a packed format.

For sizes and benchmarks of formats that nothing is rounded to, such as block FP8: most models are published
in several.
"""

from __future__ import annotations

from dataclasses import replace

from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.packed_scheme import INT4_GROUPS, int4_name, packed_scheme
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.spec.model import ModelSpec

_UNQUANTIZED = ("lm_head", "in_proj_a", "in_proj_b", "in_proj_ba", "shared_expert_gate")
"""Layers that quantized checkpoints leave in bf16."""

_CT = "compressed-tensors"
STORED_SCHEMES = {
    "fp8_block": Scheme("fp8", "fp8", 128, 128),
    "mxfp4": Scheme(_CT, "mxfp4", 1, 32, is_packed=True),
} | {
    int4_name(group, has_zero_points=has_zeros): Scheme(
        _CT, "int4", 1, group, is_packed=True, has_zero_points=has_zeros
    )
    for group in INT4_GROUPS
    for has_zeros in (False, True)
    if has_zeros or group != INT4_GROUPS[0]
}
"""Schemes of checkpoints by the name of the packed format that holds them, and that nothing is rounded to."""


def stored_as(spec: ModelSpec, quantization: str) -> ModelSpec:
    """Return ``spec`` as if a checkpoint stored it in a format of :data:`STORED_SCHEMES`.

    Unchanged for other names, and where it is published in that format: gpt-oss has attention in bf16.
    """
    scheme = STORED_SCHEMES.get(quantization)
    if scheme is None or quantization in _published(spec):
        return spec
    rules = Rule(LayerNames(_UNQUANTIZED), None), Rule(LayerNames((EVERY_LAYER,)), scheme)
    return replace(spec, quantization=Quantization(scheme.arrangement, rules))


def _published(spec: ModelSpec) -> set[str]:
    """Return the packed formats of a model's own quantization."""
    rules = spec.quantization.rules if spec.quantization else ()
    packed = (packed_scheme(rule.scheme) for rule in rules if rule.scheme is not None)
    return {layout.name for layout in packed if layout is not None}
