"""Share of a model that one of several ranks computes: heads of each mixer, inner channels of each ffn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wisp_plan.errors import CannotShard
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec


def rank_share(spec: ModelSpec, ranks: int) -> ModelSpec:
    """Return ``spec`` as each of ``ranks`` computes it; all of them have equal shares.

    Raises:
        CannotShard: a number of heads or channels does not divide, or a layer cannot be shared.
    """
    if ranks == 1:
        return spec
    layers = tuple(
        replace(layer, mixer=_share(layer.mixer, ranks), ffn=_share(layer.ffn, ranks))
        for layer in spec.layers
    )
    return replace(spec, layers=layers)


def _share(part: Any, ranks: int) -> Any:
    if part is None:
        return None
    if type(part) not in SHARED_SIZES:
        raise CannotShard(f"{type(part).__name__} cannot be split over {ranks} GPUs. Use one GPU.")
    sizes = {name: getattr(part, name) for name in SHARED_SIZES[type(part)]}
    for name, size in sizes.items():
        if size % ranks:
            raise CannotShard(
                f"{type(part).__name__}.{name} is {size}, which does not split over {ranks} GPUs. "
                "Choose a number of GPUs that divides it."
            )
    shares: dict[str, Any] = {name: size // ranks for name, size in sizes.items()}
    if isinstance(part, MoeSpec):
        shares["shared"] = _share(part.shared, ranks)
    return replace(part, **shares)


SHARED_SIZES: dict[type[Any], tuple[str, ...]] = {
    AttentionSpec: ("heads", "kv_heads"),
    DenseSpec: ("inner",),
    MoeSpec: ("inner",),
}
"""Sizes that ranks split, of each kind of mixer and feed-forward block."""
