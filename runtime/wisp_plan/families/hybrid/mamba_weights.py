"""Weights of a Mamba-2 mixer, whose tensors all families name alike."""

from __future__ import annotations

from collections.abc import Iterator

from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.weight import Role, WeightSource, WeightSpec, stacked


def mamba_weights(
    spec: MambaSpec, hidden: int, name: str, tensor: str, module: str = "mamba"
) -> Iterator[WeightSpec]:
    """Declare a layer's Mamba-2 mixer; the layer is ``name`` in the model, ``tensor`` in the checkpoint."""
    name, tensor, heads = f"{name}.mamba", f"{tensor}.{module}", (spec.heads,)
    yield _copy(
        f"{name}.input.weight", f"{tensor}.in_proj.weight", (spec.projected_size, hidden), "projection"
    )
    if spec.has_input_bias:
        yield _copy(f"{name}.input.bias", f"{tensor}.in_proj.bias", (spec.projected_size,), "bias")
    conv, stored = (spec.conv_size, spec.kernel), (spec.conv_size, 1, spec.kernel)
    source = WeightSource(f"{tensor}.conv1d.weight", stored, tuple(map(range, conv)), (0, 0), view=conv)
    yield WeightSpec(f"{name}.conv.weight", conv, (source,), "parameter")
    if spec.has_conv_bias:
        yield _copy(f"{name}.conv.bias", f"{tensor}.conv1d.bias", (spec.conv_size,), "bias")
    yield _copy(f"{name}.decay", f"{tensor}.A_log", heads, "parameter", "F32")
    yield _copy(f"{name}.step_bias", f"{tensor}.dt_bias", heads, "parameter", "F32")
    yield _copy(f"{name}.skip", f"{tensor}.D", heads, "parameter", "F32")
    if spec.gating != "gate":
        yield _copy(f"{name}.norm.weight", f"{tensor}.norm.weight", (spec.inner,), "norm", "F32")
    yield _copy(f"{name}.output.weight", f"{tensor}.out_proj.weight", (hidden, spec.inner), "projection")
    if spec.has_output_bias:
        yield _copy(f"{name}.output.bias", f"{tensor}.out_proj.bias", (hidden,), "bias")


def _copy(name: str, tensor: str, shape: tuple[int, ...], role: Role, dtype: str | None = None) -> WeightSpec:
    return WeightSpec(name, shape, stacked((tensor, shape)), role, dtype=dtype)
