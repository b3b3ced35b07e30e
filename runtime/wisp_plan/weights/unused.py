"""Parts of a checkpoint that its text model does not use, such as an encoder of images or a drafting head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.units import format_size

_STEM, _LAYERS = "model", "layers"


def describe_unused(tensors: Mapping[str, TensorInfo], extra: Iterable[str]) -> str:
    """Return the parts of a checkpoint whose every tensor is unused, with their sizes; empty: there are none.

    For example ``model.visual.* (390 tensors, 0.86 GiB), mtp.* (15 tensors, 0.21 GiB)``.

    Args:
        tensors: tensors of the checkpoint.
        extra: those that the model does not use (:class:`.tensors.Comparison`).
    """
    unused = frozenset(extra)
    used = {_part_of(name) for name in tensors if name not in unused}
    parts: dict[str, list[int]] = {}
    for name in sorted(unused):
        parts.setdefault(_part_of(name), []).append(tensors[name].size_bytes)
    return ", ".join(
        f"{part}.* ({len(sizes)} {'tensor' if len(sizes) == 1 else 'tensors'}, {format_size(sum(sizes))})"
        for part, sizes in parts.items()
        if part not in used
    )


def _part_of(name: str) -> str:
    """Return the module of a tensor below the model: ``model.visual``, ``mtp``, ``model.layers.46``."""
    first, *rest = name.split(".")
    return ".".join((first, *rest[: 2 if rest[0] == _LAYERS else 1])) if first == _STEM and rest else first
