"""Weights of a Gated DeltaNet layer, in both orders in which checkpoints store its projections.

Qwen3.5 has a tensor for Q, K and V, one for Z, one each for b and a. Qwen3-Next has one for all four and one
for both, a key head after the other; their rows are read into the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.weight import WeightSource, WeightSpec, part_of, stacked


def delta_net_weights(spec: DeltaNetSpec, hidden: int, name: str, tensor: str) -> Iterator[WeightSpec]:
    """Declare the Gated DeltaNet of a layer, which is ``name`` in the model and ``tensor`` in the checkpoint.

    b and a are rows of their own weight: FP8 checkpoints leave them unquantized, and rounding decays costs
    more than the few rows are worth.
    """
    tensor += ".linear_attn"
    qkvz, gates = (_grouped if spec.is_grouped else _in_order)(spec, hidden, tensor)
    values = spec.value_heads * spec.value_size
    yield WeightSpec(f"{name}.qkvz.weight", (spec.conv_size + values, hidden), qkvz, "projection")
    shape = 2 * spec.value_heads, hidden
    yield WeightSpec(f"{name}.gates.weight", shape, gates, "projection", is_rounded=False)
    yield _conv(spec, f"{name}.conv.weight", f"{tensor}.conv1d.weight")
    heads = (spec.value_heads,)
    for own, stored in (("decay", "A_log"), ("step_bias", "dt_bias")):
        sources = stacked((f"{tensor}.{stored}", heads))
        yield WeightSpec(f"{name}.{own}", heads, sources, "parameter", dtype="F32")
    norm = stacked((f"{tensor}.norm.weight", (spec.value_size,)))
    yield WeightSpec(f"{name}.gated_norm.weight", (spec.value_size,), norm, "norm", dtype="F32")
    output = stacked((f"{tensor}.out_proj.weight", (hidden, values)))
    yield WeightSpec(f"{name}.output.weight", (hidden, values), output, "projection")


def _conv(spec: DeltaNetSpec, name: str, tensor: str) -> WeightSpec:
    shape = spec.conv_size, spec.kernel
    stored = spec.conv_size, 1, spec.kernel
    source = WeightSource(tensor, stored, tuple(map(range, shape)), (0, 0), view=shape)
    return WeightSpec(name, shape, (source,), "parameter")


Sources = tuple[WeightSource, ...]


def _in_order(spec: DeltaNetSpec, hidden: int, tensor: str) -> tuple[Sources, Sources]:
    """Return the sources of Q, K, V and Z, and those of b and a, of whole tensors."""
    values = spec.value_heads * spec.value_size
    rows = {"in_proj_qkv": spec.conv_size, "in_proj_z": values}
    gates = dict.fromkeys(("in_proj_b", "in_proj_a"), spec.value_heads)
    qkvz, ba = (
        stacked(*((f"{tensor}.{name}.weight", (count, hidden)) for name, count in parts.items()))
        for parts in (rows, gates)
    )
    return qkvz, ba


def _grouped(spec: DeltaNetSpec, hidden: int, tensor: str) -> tuple[Sources, Sources]:
    """Return the same sources of two tensors whose rows are grouped by key head."""
    shared = spec.value_heads // spec.key_heads
    values = shared * spec.value_size
    sizes = spec.key_size, spec.key_size, values, values
    return (
        _of_groups(f"{tensor}.in_proj_qkvz.weight", spec.key_heads, sizes, hidden),
        _of_groups(f"{tensor}.in_proj_ba.weight", spec.key_heads, (shared, shared), hidden),
    )


def _of_groups(tensor: str, groups: int, sizes: Sequence[int], hidden: int) -> Sources:
    """Return the sources of a tensor that holds ``groups`` groups of parts: each part of all groups together.

    Args:
        sizes: rows of each part of a group.
    """
    group_rows = sum(sizes)
    sources, target = [], 0
    for part, rows in enumerate(sizes):
        for group in range(groups):
            first = group * group_rows + sum(sizes[:part])
            slices = range(first, first + rows), range(hidden)
            sources.append(part_of(tensor, (groups * group_rows, hidden), slices, (target, 0)))
            target += rows
    return tuple(sources)
