"""Largest sizes among the layers of a model: every layer uses the same buffers."""

from __future__ import annotations

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec


def widest(spec: ModelSpec, size: str) -> int:
    """Return the largest of a size of :class:`AttentionSpec` among the layers."""
    return max((getattr(attention, size) for attention in spec.mixers(AttentionSpec)), default=0)


def widest_ffn(spec: ModelSpec) -> int:
    """Return the largest inner size among the layers' MLPs and shared experts."""
    shared = (moe.shared for moe in spec.ffns(MoeSpec) if moe.shared is not None)
    return max((mlp.inner for mlp in (*spec.ffns(DenseSpec), *shared)), default=0)
