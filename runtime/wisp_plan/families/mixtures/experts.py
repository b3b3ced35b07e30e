"""Keys of a ``config.json`` that describe experts, and layers that have them beside dense ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from wisp_plan.families.reader import ConfigReader
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec

MAX_MODEL_EXPERTS = 1 << 17
"""Maximum of experts of all layers, some five times that of any published model: each has tensors of its own,
and a file from a stranger must not decide how many are looked for."""


def read_experts(reader: ConfigReader, *keys: str, default: int | None = None) -> int:
    """Read the number of a layer's experts, E, from the first of ``keys`` that is there."""
    key = next((key for key in keys if reader.has(key)), keys[0])
    experts = reader.integer(key, default)
    layers = reader.integer("num_hidden_layers")
    if experts * layers > MAX_MODEL_EXPERTS:
        raise reader.bad(key, f"at most {MAX_MODEL_EXPERTS // layers} experts in each of {layers} layers")
    return experts


def read_chosen(reader: ConfigReader, experts: int, default: int) -> int:
    """Read the number of experts that each token is sent to, K."""
    chosen = reader.integer("num_experts_per_tok", default)
    if chosen > experts:
        raise reader.bad("num_experts_per_tok", f"at most the {experts} experts that there are")
    return chosen


def read_groups(reader: ConfigReader, experts: int, chosen: int) -> tuple[int, int]:
    """Read the groups of experts, and how many of them are chosen from."""
    groups, chosen_groups = reader.integer("n_group", 1), reader.integer("topk_group", 1)
    if experts % groups or (groups > 1 and experts // groups < 2):
        raise reader.bad("n_group", f"a number of groups that divides {experts} experts, two or more in each")
    if chosen_groups > groups or chosen_groups * (experts // groups) < chosen:
        raise reader.bad("topk_group", f"groups of the {groups} that hold the {chosen} chosen experts")
    return groups, chosen_groups


def read_deepseek_router(reader: ConfigReader, experts: int, chosen: int) -> RouterSpec:
    """Read DeepSeek's router, as GLM and Nemotron spell it: ``chosen`` of ``experts``, by groups."""
    groups, chosen_groups = read_groups(reader, experts, chosen)
    return RouterSpec(
        experts,
        chosen,
        "sigmoid",
        normalizes=reader.flag("norm_topk_prob", True),
        has_correction_bias=True,
        groups=groups,
        chosen_groups=chosen_groups,
        scale=reader.number("routed_scaling_factor", 1.0),
    )


def with_mixtures(spec: ModelSpec, moe: MoeSpec, layers: Iterable[int]) -> ModelSpec:
    """Return a dense model with a mixture in each of ``layers``."""
    changed = frozenset(layers)
    return replace(
        spec,
        layers=tuple(
            replace(layer, ffn=moe) if index in changed else layer for index, layer in enumerate(spec.layers)
        ),
    )
