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

_MAX_HIDDEN, _MAX_HEAD, _MAX_VOCAB = 16384, 256, 1 << 18
_MULTIPLE = 8  # elements of 16 bytes
_MAX_HEADS_A_GROUP = 16
_MAX_DELTA_SIZE, _CONV_TAPS = 128, 4
_MAX_MAMBA_HEAD, _MAX_MAMBA_STATE = 128, 256
_MAX_NORM_GROUP = 16384


def excessive_sizes(spec: ModelSpec) -> tuple[str, ...]:
    """Return each size of a model that no GPU has kernels for, in words, with the limit."""
    return tuple(dict.fromkeys((*_size_problems(spec), *_mixture_problems(spec), *_mixer_problems(spec))))


def _size_problems(spec: ModelSpec) -> Iterator[str]:
    for what, size, limit in _sizes(spec):
        yield from _problems(what, size, limit)
    if spec.vocab > _MAX_VOCAB:
        yield f"the vocabulary has {spec.vocab} tokens, over {_MAX_VOCAB}"


def _problems(what: str, size: int, limit: int | None, unit: str = "channels") -> Iterator[str]:
    """Yield what is wrong with a size that is a multiple of 16 bytes."""
    if size % _MULTIPLE:
        yield f"{what} {size} {unit}, no multiple of {_MULTIPLE}"
    if limit is not None and size > limit:
        yield f"{what} {size} {unit}, over {limit}"


def _sizes(spec: ModelSpec) -> Iterator[tuple[str, int, int | None]]:
    """Yield the sizes that are a multiple of 16 bytes: whose, the channels, and their limit."""
    yield "the residual stream has", spec.hidden, _MAX_HIDDEN
    for ffn in spec.ffns(DenseSpec):
        yield "an MLP has", ffn.inner, None
    for mixture in spec.ffns(MoeSpec):
        yield "experts have", mixture.inner, None
        if mixture.shared is not None:
            yield "the shared expert has", mixture.shared.inner, None
        if mixture.latent is not None:
            yield "the experts' latent space has", mixture.latent, spec.hidden
    for attention in spec.mixers(AttentionSpec):
        yield "heads of attention have", attention.head_size, _MAX_HEAD
        yield "RoPE is applied to", attention.rotary_size, None


def _mixture_problems(spec: ModelSpec) -> Iterator[str]:
    for mixture in spec.ffns(MoeSpec):
        yield from _router_problems(mixture.router)


def _router_problems(router: RouterSpec) -> Iterator[str]:
    limits = (
        ("experts", router.experts, MAX_EXPERTS),
        ("chosen experts", router.chosen, MAX_CHOSEN),
        ("groups of experts", router.groups, MAX_GROUPS),
    )
    for what, count, limit in limits:
        if count > limit:
            yield f"a mixture has {count} {what}, over {limit}"
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
    for name, size in (("keys", mixer.key_size), ("values", mixer.value_size)):
        yield from _problems(f"{name} of Gated DeltaNet have", size, _MAX_DELTA_SIZE)
    if mixer.kernel != _CONV_TAPS:
        yield f"convolutions of Gated DeltaNet have {mixer.kernel} taps, not {_CONV_TAPS}"
    if mixer.state_dtype != "float32":
        yield f"states of Gated DeltaNet are {mixer.state_dtype}, not float32"


def _mamba_problems(mixer: MambaSpec) -> Iterator[str]:
    yield from _problems("heads of Mamba-2 have", mixer.head_size, _MAX_MAMBA_HEAD)
    yield from _problems("states of Mamba-2 have", mixer.state_size, _MAX_MAMBA_STATE)
    yield from _problems("Mamba-2 has", mixer.heads, None, "heads")
    group = mixer.inner if mixer.gating == "gate" else mixer.inner // mixer.groups
    if group > _MAX_NORM_GROUP:
        yield f"norms of Mamba-2 have {group} channels, over {_MAX_NORM_GROUP}"
    if mixer.kernel != _CONV_TAPS:
        yield f"convolutions of Mamba-2 have {mixer.kernel} taps, not {_CONV_TAPS}"
    if mixer.state_dtype != "float32":
        yield f"states of Mamba-2 are {mixer.state_dtype}, not float32"
