"""Largest sizes among the layers of a model: every layer uses the same buffers."""

from __future__ import annotations

from collections.abc import Callable

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec


def widest(spec: ModelSpec, size: str) -> int:
    """Return the largest of a size of :class:`AttentionSpec` among the layers."""
    return max((getattr(attention, size) for attention in spec.mixers(AttentionSpec)), default=0)


def widest_ffn(spec: ModelSpec, is_counted: Callable[[DenseSpec], bool] = lambda _: True) -> int:
    """Return the largest inner size among the layers' MLPs and shared experts, or those that count."""
    shared = (moe.shared for moe in spec.ffns(MoeSpec) if moe.shared is not None)
    mlps = (*spec.ffns(DenseSpec), *shared)
    return max((mlp.inner for mlp in mlps if is_counted(mlp)), default=0)
