"""Published models as if their checkpoints stored the weights in a packed format.

For sizes and benchmarks of formats that nothing is rounded to, such as block FP8: most models are published
in several.
"""

from __future__ import annotations

from dataclasses import replace

from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.packed_scheme import INT4_GROUPS, int4_name
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
    """Return ``spec`` as if a checkpoint stored it in a format of :data:`STORED_SCHEMES`; else unchanged."""
    scheme = STORED_SCHEMES.get(quantization)
    if scheme is None:
        return spec
    rules = Rule(LayerNames(_UNQUANTIZED), None), Rule(LayerNames((EVERY_LAYER,)), scheme)
    return replace(spec, quantization=Quantization(scheme.arrangement, rules))
