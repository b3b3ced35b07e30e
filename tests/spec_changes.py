"""Specs like another one but for some fields, whichever part of the model has them."""

from __future__ import annotations

from dataclasses import fields, replace

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.layer import LayerSpec
from wisp_plan.spec.model import ModelSpec, equal_layer


def changed(spec: ModelSpec, layers: int | None = None, **changes: object) -> ModelSpec:
    """Return ``spec`` with other values of fields of the model, or of every layer's mixer, ffn and norms.

    Args:
        layers: number of layers, at most those there are.
    """
    own = {name: changes.pop(name) for name in list(changes) if name in _names(spec)}
    return replace(spec, **own, layers=tuple(_changed(layer, changes) for layer in spec.layers[:layers]))


def field_of(spec: ModelSpec, name: str) -> object:
    """Return a field of the model, or of the mixer, ffn or norms of its first layer."""
    first = spec.layers[0]
    owner = next(part for part in (spec, first.mixer, first.ffn, first.norms) if name in _names(part))
    value = getattr(owner, name)
    return len(value) if name == "layers" else value


def attention_of(spec: ModelSpec) -> AttentionSpec:
    """Return the attention of a model whose layers are equal."""
    layer = equal_layer(spec)
    assert layer is not None
    return layer.attention


def _changed(layer: LayerSpec, changes: dict[str, object]) -> LayerSpec:
    parts = {name: getattr(layer, name) for name in ("mixer", "ffn", "norms")}
    assert set(changes) <= set().union(*map(_names, parts.values())), (
        f"no part of the layer has one of {changes}"
    )
    own = {
        name: {key: changes[key] for key in changes if key in _names(part)} for name, part in parts.items()
    }
    return replace(layer, **{name: replace(part, **own[name]) for name, part in parts.items()})


def _names(part: object) -> set[str]:
    return {field.name for field in fields(part)}
