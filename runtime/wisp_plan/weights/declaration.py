"""Declaration of a model's weights, and the share of it that one of several ranks holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from wisp_plan.errors import CannotShard
from wisp_plan.families import gemma3
from wisp_plan.families.hugging_face import decoder_weights
from wisp_plan.families.hybrid import falcon_h1, granite_hybrid, nemotron_h
from wisp_plan.families.mixtures import gpt_oss, mixtral
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import WeightSource, WeightSpec

DECLARATIONS: dict[str, Callable[[ModelSpec], Iterable[WeightSpec]]] = {
    mixtral.FAMILY: mixtral.mixtral_weights,
    gpt_oss.FAMILY: gpt_oss.weights,
    nemotron_h.FAMILY: nemotron_h.nemotron_weights,
    granite_hybrid.FAMILY: granite_hybrid.granite_weights,
    falcon_h1.FAMILY: falcon_h1.falcon_weights,
    gemma3.FAMILY: gemma3.gemma_weights,
}
"""Declarations of families whose tensors are not named as :func:`decoder_weights` names them."""


@lru_cache(maxsize=256)
def declare(spec: ModelSpec) -> tuple[WeightSpec, ...]:
    """Declare the weights of ``spec``, unquantized and whole, in the order in which a step reads them."""
    return tuple(DECLARATIONS.get(spec.family, decoder_weights)(spec))


def shard(weights: Iterable[WeightSpec], rank: int, ranks: int) -> tuple[WeightSpec, ...]:
    """Return the weights of ``rank`` of ``ranks``: equal shares of every source along the shard axis.

    Raises:
        CannotShard: an axis does not split into equal shares of whole units.
    """
    kept = (weight for weight in weights if rank == 0 or not weight.is_on_first_rank)
    return tuple(weight if weight.shard_axis is None else _share(weight, rank, ranks) for weight in kept)


def _share(weight: WeightSpec, rank: int, ranks: int) -> WeightSpec:
    axis = weight.shard_axis
    assert axis is not None
    shape = _divided(weight.shape, axis, ranks, weight)
    own, *others = (
        tuple(_sources(weight, sources, rank, ranks)) for sources in (weight.sources, *weight.alternatives)
    )
    return replace(weight, shape=shape, sources=own, alternatives=tuple(others))


def _sources(
    weight: WeightSpec, sources: Iterable[WeightSource], rank: int, ranks: int
) -> Iterator[WeightSource]:
    axis = weight.shard_axis
    assert axis is not None
    for source in sources:
        of_source = axis - len(weight.shape) + len(source.slices)
        if of_source < 0:  # one tensor for each index of the axis, such as one an expert
            share = weight.shape[axis] // ranks
            if source.at[axis] // share == rank:
                yield replace(source, at=_at(source.at, axis, source.at[axis] % share))
            continue
        extents = tuple(map(len, source.slices))
        share = _divided(extents, of_source, ranks, weight)[of_source]
        slices = list(source.slices)
        slices[of_source] = slices[of_source][rank * share : (rank + 1) * share]
        yield replace(source, slices=tuple(slices), at=_at(source.at, axis, source.at[axis] // ranks))


def _divided(shape: tuple[int, ...], axis: int, ranks: int, weight: WeightSpec) -> tuple[int, ...]:
    if shape[axis] % (ranks * weight.shard_unit):
        units = f"{shape[axis] // weight.shard_unit} units of {weight.shard_unit}"
        remedy = "Choose a number of GPUs that divides them."
        raise CannotShard(f"{weight.name}: {units} do not split over {ranks} GPUs. {remedy}")
    return _at(shape, axis, shape[axis] // ranks)


def _at(index: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return *index[:axis], value, *index[axis + 1 :]
