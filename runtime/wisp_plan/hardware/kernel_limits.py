"""Sizes that GPU kernels take (``needs`` of their manifests); the CPU takes all.

Where a kernel takes more, its limit here grows with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec, Scores

MAX_EXPERTS = 512
"""Experts that ``route_tokens.cu``, ``choose_experts.cu`` and ``sort_pairs.cu`` take."""

MAX_CHOSEN = MAX_GROUPS = 32

ROUTER_SCORES: tuple[Scores, ...] = "softmax", "sigmoid"
"""Scores that ``expert_choice.cuh`` computes, by its ``is_sigmoid``."""

_MAX_SIZES = {"hidden_size": 16384, "head_dim": 256, "vocab_size": 1 << 18}
_MULTIPLE = 8  # elements of 16 bytes
_MAX_HEADS_A_GROUP = 16
_MAX_DELTA_SIZE, _CONV_TAPS = 128, 4
_MAX_NORM_GROUP = 16384


def excessive_sizes(spec: ModelSpec) -> tuple[str, ...]:
    """Return each size of a model that no GPU has kernels for, by its key, with the limit."""
    return tuple(dict.fromkeys((*_size_problems(spec), *_mixture_problems(spec), *_mixer_problems(spec))))


def _size_problems(spec: ModelSpec) -> Iterator[str]:
    sizes = list(_sizes(spec))
    yield from (f"{name} is {size}, no multiple of {_MULTIPLE}" for name, size in sizes if size % _MULTIPLE)
    for name, size in (*sizes, ("vocab_size", spec.vocab)):
        if size > _MAX_SIZES.get(name, size):
            yield f"{name} is {size}, over {_MAX_SIZES[name]}"


def _sizes(spec: ModelSpec) -> Iterator[tuple[str, int]]:
    """Yield the sizes that are a multiple of 16 bytes, by their keys."""
    yield "hidden_size", spec.hidden
    for ffn in spec.ffns(DenseSpec):
        yield "intermediate_size", ffn.inner
    for mixture in spec.ffns(MoeSpec):
        yield "moe_intermediate_size", mixture.inner
        if mixture.shared is not None:
            yield "shared_expert_intermediate_size", mixture.shared.inner
        if mixture.latent is not None:
            yield "moe_latent_size", mixture.latent
    for attention in spec.mixers(AttentionSpec):
        yield "head_dim", attention.head_size
        yield "rotated channels", attention.rotary_size


def _mixture_problems(spec: ModelSpec) -> Iterator[str]:
    for mixture in spec.ffns(MoeSpec):
        yield from _router_problems(mixture.router)
        if (mixture.latent or 0) > spec.hidden:
            yield f"moe_latent_size is {mixture.latent}, over hidden_size {spec.hidden}"


def _router_problems(router: RouterSpec) -> Iterator[str]:
    limits = ("experts", MAX_EXPERTS), ("chosen", MAX_CHOSEN), ("groups", MAX_GROUPS)
    for name, limit in limits:
        if getattr(router, name) > limit:
            yield f"{getattr(router, name)} {name} of a mixture are over {limit}"
    if router.scores not in ROUTER_SCORES:
        yield f"scores of a router are {router.scores}, none of {', '.join(ROUTER_SCORES)}"
    if router.groups > 1 and router.experts < 2 * router.groups:
        yield f"{router.experts} experts in {router.groups} groups are fewer than 2 a group"


def _mixer_problems(spec: ModelSpec) -> Iterator[str]:
    for attention in spec.mixers(AttentionSpec):
        if attention.heads > _MAX_HEADS_A_GROUP * attention.kv_heads:
            heads = f"{attention.heads} query heads are more than {_MAX_HEADS_A_GROUP} times"
            yield f"{heads} {attention.kv_heads} KV heads"
    for mixer in spec.mixers(DeltaNetSpec):
        yield from _delta_net_problems(mixer)
    for mamba in spec.mixers(MambaSpec):
        yield from _mamba_problems(mamba)


def _delta_net_problems(mixer: DeltaNetSpec) -> Iterator[str]:
    for name, size in (("key", mixer.key_size), ("value", mixer.value_size)):
        if size % _MULTIPLE or size > _MAX_DELTA_SIZE:
            yield f"linear_{name}_head_dim is {size}, no multiple of {_MULTIPLE} up to {_MAX_DELTA_SIZE}"
    if mixer.kernel != _CONV_TAPS:
        yield f"linear_conv_kernel_dim is {mixer.kernel}, not {_CONV_TAPS}"
    if mixer.state_dtype != "float32":
        yield f"states of Gated DeltaNet are {mixer.state_dtype}, not float32"


def _mamba_problems(mixer: MambaSpec) -> Iterator[str]:
    limits = ("mamba_head_dim", mixer.head_size, 128), ("ssm_state_size", mixer.state_size, 256)
    for name, size, limit in limits:
        if size % _MULTIPLE or size > limit:
            yield f"{name} is {size}, no multiple of {_MULTIPLE} up to {limit}"
    group = mixer.inner if mixer.gating == "gate" else mixer.inner // mixer.groups
    if group > _MAX_NORM_GROUP:
        yield f"norms of Mamba-2 have {group} channels, over {_MAX_NORM_GROUP}"
    if mixer.heads % _MULTIPLE:
        yield f"mamba_num_heads is {mixer.heads}, no multiple of {_MULTIPLE}"
    if mixer.kernel != _CONV_TAPS:
        yield f"conv_kernel is {mixer.kernel}, not {_CONV_TAPS}"
    if mixer.state_dtype != "float32":
        yield f"states of Mamba-2 are {mixer.state_dtype}, not float32"
