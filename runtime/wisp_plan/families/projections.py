"""Declarations that several kinds of layers share: norms, MLPs, projections of partial sums."""

from __future__ import annotations

from collections.abc import Iterator

from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import NormSpec
from wisp_plan.spec.weight import GateUpRows, Role, WeightSpec, stacked


def norm_weight(name: str, tensor: str, size: int, norms: NormSpec | None = None) -> WeightSpec:
    """Declare the weight of a norm over ``size`` channels; about 0 if it is zero-centred, else about 1."""
    role: Role = "parameter" if norms is not None and norms.is_zero_centred else "norm"
    return WeightSpec(f"{name}.weight", (size,), stacked((f"{tensor}.weight", (size,))), role)


def mlp_weights(spec: DenseSpec, hidden: int, name: str, tensor: str) -> Iterator[WeightSpec]:
    """Declare an MLP, which is ``name`` in the model and whose projections are ``tensor.up_proj`` …"""
    parts, rows = (("gate_proj", "up_proj"), GateUpRows()) if spec.is_gated else (("up_proj",), None)
    first = f"{name}.{'gate_up' if spec.is_gated else 'up'}"
    weights = stacked(*((f"{tensor}.{part}.weight", (spec.inner, hidden)) for part in parts))
    shape = len(parts) * spec.inner, hidden
    yield WeightSpec(f"{first}.weight", shape, weights, "projection", shard_axis=0, rows=rows)
    yield row_parallel(f"{name}.down", f"{tensor}.down_proj", (hidden, spec.inner))
    if spec.has_bias:
        biases = stacked(*((f"{tensor}.{part}.bias", (spec.inner,)) for part in parts))
        yield WeightSpec(f"{first}.bias", shape[:1], biases, "bias", shard_axis=0, rows=rows)
        yield row_parallel_bias(f"{name}.down", f"{tensor}.down_proj", hidden)


def row_parallel(name: str, tensor: str, shape: tuple[int, int], *, unit: int = 1) -> WeightSpec:
    """Declare a projection whose inputs ranks share, so that their results are partial sums."""
    sources = stacked((f"{tensor}.weight", shape))
    return WeightSpec(f"{name}.weight", shape, sources, "projection", shard_axis=1, shard_unit=unit)


def row_parallel_bias(name: str, tensor: str, size: int) -> WeightSpec:
    """Declare the bias of a :func:`row_parallel` projection, which rank 0 alone adds."""
    sources = stacked((f"{tensor}.bias", (size,)))
    return WeightSpec(f"{name}.bias", (size,), sources, "bias", is_on_first_rank=True)
