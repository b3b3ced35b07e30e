"""Layers and sizes that a model may have for the kernels of a GPU (``needs`` of the manifests). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from wisp_plan.hardware.kernel_layers import missing_kernels
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_runtime.errors import ConfigError, ModelUnsupported
from wisp_runtime.ops.cuda.moe.plan import MAX_CHOSEN, MAX_EXPERTS, MAX_GROUPS

_MAX_SIZES = {"hidden_size": 16384, "head_dim": 256, "vocab_size": 1 << 18}
_MAX_HEADS_A_GROUP = 16
_MAX_DELTA_SIZE, _CONV_TAPS = 128, 4


def require_model(spec: ModelSpec, block_tokens: int) -> None:
    """Refuse layers and sizes that no kernel takes, before anything is loaded.

    Raises:
        ConfigError: KV blocks of ``block_tokens`` tokens.
        ModelUnsupported: the model has such a layer or size.
    """
    if block_tokens % 8:
        raise ConfigError(f"--block-tokens {block_tokens}: must be a multiple of 8 on a GPU, such as 16.")
    if problems := list(_problems(spec)):
        raise ModelUnsupported(
            f"no kernel for this model: {'; '.join(problems)}. Serve it with --device cpu."
        )


def _problems(spec: ModelSpec) -> Iterator[str]:
    yield from missing_kernels(spec)
    attentions = spec.mixers(AttentionSpec)
    sizes = {"hidden_size": spec.hidden}
    for ffn in spec.ffns(DenseSpec):
        sizes["intermediate_size"] = ffn.inner
    for mixture in spec.ffns(MoeSpec):
        sizes["moe_intermediate_size"] = mixture.inner
        yield from _of_router(mixture.router)
        if mixture.shared is not None:
            sizes["shared_expert_intermediate_size"] = mixture.shared.inner
    for attention in attentions:
        sizes |= {"head_dim": attention.head_size, "rotated channels": attention.rotary_size}
    yield from (f"{name} is {size}, no multiple of 8" for name, size in sizes.items() if size % 8)
    sizes["vocab_size"] = spec.vocab
    for name, limit in _MAX_SIZES.items():
        if sizes.get(name, 0) > limit:
            yield f"{name} is {sizes[name]}, over {limit}"
    for attention in attentions:
        if attention.heads > _MAX_HEADS_A_GROUP * attention.kv_heads:
            heads = f"{attention.heads} query heads are more than {_MAX_HEADS_A_GROUP} times"
            yield f"{heads} {attention.kv_heads} KV heads"
    for mixer in spec.mixers(DeltaNetSpec):
        yield from _delta_net_problems(mixer)


def _of_router(router: RouterSpec) -> Iterator[str]:
    limits = ("experts", MAX_EXPERTS), ("chosen", MAX_CHOSEN), ("groups", MAX_GROUPS)
    for name, limit in limits:
        if getattr(router, name) > limit:
            yield f"{getattr(router, name)} {name} of a mixture are over {limit}"
    if router.groups > 1 and router.experts < 2 * router.groups:
        yield f"{router.experts} experts in {router.groups} groups are fewer than 2 a group"


def _delta_net_problems(mixer: DeltaNetSpec) -> Iterator[str]:
    for name, size in (("key", mixer.key_size), ("value", mixer.value_size)):
        if size % 8 or size > _MAX_DELTA_SIZE:
            yield f"linear_{name}_head_dim is {size}, no multiple of 8 up to {_MAX_DELTA_SIZE}"
    if mixer.kernel != _CONV_TAPS:
        yield f"linear_conv_kernel_dim is {mixer.kernel}, not {_CONV_TAPS}"
    if mixer.state_dtype != "float32":
        yield f"states of Gated DeltaNet are {mixer.state_dtype}, not float32"
