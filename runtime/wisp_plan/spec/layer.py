"""One layer of a decoder: a token mixer, a feed-forward block, the norms before them.

A mixer or feed-forward block is any frozen dataclass; a layer's code is found by its type
(``wisp_runtime/layers/registry.py``). A new kind of layer is a new dataclass beside these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class MixerSpec(Protocol):
    """Token mixer of a layer, such as :class:`~.attention.AttentionSpec`."""

    def cache(self) -> object | None:
        """Return the layer's cache of a sequence (:mod:`.cache`); None: no cache."""
        ...


@dataclass(frozen=True, slots=True)
class ParallelSpec:
    """Mixers with the same normed input, whose results are added to the residual stream.

    Attributes:
        mixers: the mixers, each with a cache of its own; attention is the first.
        scales: factor of each one's result.
    """

    mixers: tuple[MixerSpec, ...]
    scales: tuple[float, ...]

    def cache(self) -> tuple[object | None, ...]:
        """Return the cache of each mixer."""
        return tuple(mixer.cache() for mixer in self.mixers)


@dataclass(frozen=True, slots=True)
class NormSpec:
    """RMS norms of a layer.

    Attributes:
        eps: added to the mean square.
        is_zero_centred: whether the factor of a channel is one more than its weight.
        follow: whether there is a norm behind the mixer and behind the ffn, too, before their results are
            added.
    """

    eps: float
    is_zero_centred: bool = False
    follow: bool = False


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A layer: ``x += mixer(norm(x)); x += ffn(norm(x))``.

    Attributes:
        mixer: token mixer, or several in a :class:`ParallelSpec`; None: the layer has none.
        ffn: feed-forward block, such as :class:`~.ffn.DenseSpec`; None: the layer has none.
        norms: norms before each of them, and behind.
    """

    mixer: MixerSpec | None
    ffn: object | None
    norms: NormSpec

    @property
    def mixers(self) -> tuple[MixerSpec, ...]:
        """Token mixers of the layer: none, one, or those in parallel."""
        if isinstance(self.mixer, ParallelSpec):
            return self.mixer.mixers
        return () if self.mixer is None else (self.mixer,)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Equal layers of a model.

    Attributes:
        spec: spec of each of them.
        indices: their positions in the model, ascending.
    """

    spec: LayerSpec
    indices: tuple[int, ...]
