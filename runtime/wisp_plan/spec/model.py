"""A decoder-only model: its layers, and the dimensions that they share.

Pure: translators in :mod:`wisp_plan.families` make it from a ``config.json``; the decoder is built from it,
and the ledger counts with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from wisp_plan.quantization.scheme import Quantization
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import LayerGroup, LayerSpec, NormSpec
from wisp_plan.spec.moe import MoeSpec

T = TypeVar("T")


class EqualLayer(NamedTuple):
    """The layer of a decoder whose layers are all equal: attention, and a gated MLP or a mixture of them."""

    attention: AttentionSpec
    ffn: DenseSpec | MoeSpec
    norms: NormSpec


class RepeatedLayers(NamedTuple):
    """Layers of a decoder that come again and again.

    Attributes:
        attention, ffn, norms: parts of a layer.
        period: layers of which the last has attention; 1: every layer has.
        delta_net: mixer of the others; None: there are none.
        window_period: layers of which the last sees all tokens, the others ``attention``'s window; 1: all see
            alike.
    """

    attention: AttentionSpec
    ffn: DenseSpec | MoeSpec
    norms: NormSpec
    period: int = 1
    delta_net: DeltaNetSpec | None = None
    window_period: int = 1

    def is_delta_net(self, index: int) -> bool:
        """Return whether a layer is Gated DeltaNet."""
        return index % self.period != self.period - 1


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only model.

    Attributes:
        architecture: name in ``config.json``, e.g. ``LlamaForCausalLM``.
        family: name of the translator under ``families/``, e.g. ``llama``.
        layers: the layers in order; L is their number.
        hidden, vocab: D, V.
        max_context: longest sequence that the model was made for, in tokens.
        final_norm: norm before the head.
        ties_embeddings: whether the head is the embedding table.
        embedding_scale, logits_scale: factors of the embeddings as they enter the first layer, and of the
            logits.
        bos_token_id, eos_token_ids: tokens that begin and end a text.
        dtype: dtype of the checkpoint's weights, in safetensors' words (``BF16``).
        quantization: quantized layers of the checkpoint; None: there are none.
        tensors: prefix of the checkpoint's tensors; the head has none.
    """

    architecture: str
    family: str
    layers: tuple[LayerSpec, ...]
    hidden: int
    vocab: int
    max_context: int
    final_norm: NormSpec
    ties_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "BF16"
    quantization: Quantization | None = None
    tensors: str = "model"
    embedding_scale: float = 1.0
    logits_scale: float = 1.0

    def groups(self) -> tuple[LayerGroup, ...]:
        """Return the different layers, in order of their first, each with the indices of its equals."""
        indices: dict[LayerSpec, list[int]] = {}
        for index, layer in enumerate(self.layers):
            indices.setdefault(layer, []).append(index)
        return tuple(LayerGroup(layer, tuple(where)) for layer, where in indices.items())

    def mixers(self, kind: type[T]) -> tuple[T, ...]:
        """Return the different mixers of a kind, those in parallel with others too."""
        mixers = (mixer for group in self.groups() for mixer in group.spec.mixers)
        return tuple(dict.fromkeys(mixer for mixer in mixers if isinstance(mixer, kind)))

    def ffns(self, kind: type[T]) -> tuple[T, ...]:
        """Return the different feed-forward blocks of a kind."""
        ffns = (group.spec.ffn for group in self.groups())
        return tuple(dict.fromkeys(ffn for ffn in ffns if isinstance(ffn, kind)))


def equal_layer(spec: ModelSpec) -> EqualLayer | None:
    """Return the attention, and the MLP or mixture, that all layers of ``spec`` have; None for any other."""
    first = spec.layers[0]
    if len(spec.groups()) > 1 or not isinstance(first.mixer, AttentionSpec):
        return None
    if not isinstance(first.ffn, DenseSpec | MoeSpec):
        return None
    return EqualLayer(first.mixer, first.ffn, first.norms)


NOT_REPEATED = (
    "its layers differ, or are neither attention with a gated MLP or mixture, all tokens seen by all or by "
    "the last of each few, nor such layers with Gated DeltaNet in all but the last of each few"
)
"""Reason of a model without :func:`repeated_layers`."""


def repeated_layers(spec: ModelSpec) -> RepeatedLayers | None:
    """Return the layers of a decoder that attends in all, or in the last of each few; None for any other.

    Where it attends in all, the last of each few may see all tokens, the others a window.
    """
    if layer := equal_layer(spec):
        return RepeatedLayers(*layer)
    if layers := _windowed_layers(spec):
        return layers
    attentions, deltas = spec.mixers(AttentionSpec), spec.mixers(DeltaNetSpec)
    ffns: tuple[DenseSpec | MoeSpec, ...] = (*spec.ffns(DenseSpec), *spec.ffns(MoeSpec))
    are_alike = len(attentions) == len(deltas) == len(ffns) == 1 and len(spec.groups()) == 2
    if not are_alike:
        return None
    period = next(index for index, layer in enumerate(spec.layers) if layer.mixer == attentions[0]) + 1
    layers = RepeatedLayers(attentions[0], ffns[0], spec.layers[0].norms, period, deltas[0])
    mixers = [deltas[0] if layers.is_delta_net(index) else attentions[0] for index in range(len(spec.layers))]
    return layers if [layer.mixer for layer in spec.layers] == mixers else None


def _windowed_layers(spec: ModelSpec) -> RepeatedLayers | None:
    """Return the layers of a decoder of which the last of each few sees all tokens; None for any other."""
    attentions = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)]
    windows = [attention.window for attention in attentions]
    others = {replace(attention, window=None) for attention in attentions}
    first = spec.layers[0]
    are_alike = len(others) == len({(layer.ffn, layer.norms) for layer in spec.layers}) == 1
    if len(attentions) < len(spec.layers) or not are_alike or not isinstance(first.ffn, DenseSpec | MoeSpec):
        return None
    if None not in windows or windows[0] is None:
        return None
    period = windows.index(None) + 1
    repeated = [None if index % period == period - 1 else windows[0] for index in range(len(windows))]
    if windows != repeated:
        return None
    return RepeatedLayers(attentions[0], first.ffn, first.norms, window_period=period)


def dense_decoder(
    architecture: str,
    family: str,
    *,
    layers: int,
    hidden: int,
    inner: int,
    vocab: int,
    max_context: int,
    attention: AttentionSpec,
    norm_eps: float,
    has_mlp_bias: bool = False,
    ties_embeddings: bool = False,
    bos_token_id: int | None = None,
    eos_token_ids: tuple[int, ...] = (),
    dtype: str = "BF16",
) -> ModelSpec:
    """Make a model of ``layers`` equal layers: attention, then a gated MLP of ``inner`` channels."""
    norms = NormSpec(norm_eps)
    layer = LayerSpec(attention, DenseSpec(inner, has_bias=has_mlp_bias), norms)
    return ModelSpec(
        architecture=architecture,
        family=family,
        layers=(layer,) * layers,
        hidden=hidden,
        vocab=vocab,
        max_context=max_context,
        final_norm=norms,
        ties_embeddings=ties_embeddings,
        bos_token_id=bos_token_id,
        eos_token_ids=eos_token_ids,
        dtype=dtype,
    )
