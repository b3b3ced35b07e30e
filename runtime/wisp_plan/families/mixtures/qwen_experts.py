"""Keys that Qwen's mixtures share: Qwen3-MoE, Qwen3-Next, Qwen3.5-MoE."""

from __future__ import annotations

from dataclasses import replace

from wisp_plan.families.mixtures.experts import read_chosen, read_experts
from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec


def read_qwen_mixture(
    reader: ConfigReader, *, experts: int, chosen: int, inner: int, normalizes: bool
) -> MoeSpec:
    """Read a mixture without a shared expert.

    Args:
        experts, chosen, inner: defaults of ``num_experts``, ``num_experts_per_tok`` and
            ``moe_intermediate_size``.
        normalizes: whether the weights of the chosen are divided by their sum.
    """
    experts = read_experts(reader, "num_experts", "num_local_experts", default=experts)
    router = RouterSpec(experts, read_chosen(reader, experts, chosen), normalizes=normalizes)
    return MoeSpec(router, reader.integer("moe_intermediate_size", inner))


def read_shared_mixture(
    reader: ConfigReader, *, experts: int, chosen: int, inner: int, normalizes: bool
) -> MoeSpec:
    """Read a mixture with a gated shared expert; arguments as of :func:`read_qwen_mixture`."""
    moe = read_qwen_mixture(reader, experts=experts, chosen=chosen, inner=inner, normalizes=normalizes)
    shared = DenseSpec(reader.integer("shared_expert_intermediate_size", inner))
    return replace(moe, shared=shared, has_shared_gate=True)


def read_sparse_layers(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """Return the layers that are mixtures: every ``decoder_sparse_step``-th but ``mlp_only_layers``.

    Raises:
        ConfigInvalid: no layer is one, or a layer is named that is not there.
    """
    step, dense = reader.integer("decoder_sparse_step", 1), reader.items("mlp_only_layers")
    if step > layers:
        raise reader.bad("decoder_sparse_step", f"at most {layers}, the number of layers")
    if not all(type(index) is int and 0 <= index < layers for index in dense):
        raise reader.bad("mlp_only_layers", f"a list of layers from 0 to {layers - 1}")
    sparse = tuple(index for index in range(layers) if index not in dense and (index + 1) % step == 0)
    if not sparse:
        raise reader.bad("mlp_only_layers", "a list that leaves a layer with experts")
    return sparse
