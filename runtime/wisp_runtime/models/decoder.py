"""Decoder of any family: embedding, the layers that the spec lists, final norm, head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.layer import LayerSpec, NormSpec, ParallelSpec
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.comm.none import NO_COMM
from wisp_runtime.comm.protocol import Comm
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.expert_load import ExpertLoad
from wisp_runtime.layers.norm import RMSNorm
from wisp_runtime.layers.registry import FFNS, MIXERS, Ffn
from wisp_runtime.layers.rotary import RopeTables
from wisp_runtime.models.model import Output
from wisp_runtime.ops.protocol.attention import RopeTable
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.weights.arena import Weights

Probe = Callable[[int, Array], None]


class Layer:
    """One layer: a mixer and a feed-forward block, each with its norms; either may be absent."""

    def __init__(self, context: LayerContext, spec: LayerSpec) -> None:
        self._ops, self._all_reduce = context.ops, context.comm.all_reduce
        self._mixers = [
            MIXERS[type(mixer)](replace(context, part=part), mixer) for part, mixer in enumerate(spec.mixers)
        ]
        self._scales = spec.mixer.scales if isinstance(spec.mixer, ParallelSpec) else (1.0,)
        self._ffn: Ffn | None = None
        self._post_mixer_norm: RMSNorm | None = None
        self._post_mlp_norm: RMSNorm | None = None
        if self._mixers:
            self._input_norm = _norm(context, "input_norm", spec.norms)
            if spec.norms.follow:
                self._post_mixer_norm = _norm(context, "post_mixer_norm", spec.norms)
        if spec.ffn is not None:
            self._ffn = FFNS[type(spec.ffn)](context, spec.ffn)
            self._mlp_norm = _norm(context, "mlp_norm", spec.norms)
            if spec.norms.follow:
                self._post_mlp_norm = _norm(context, "post_mlp_norm", spec.norms)

    @property
    def selects_rows(self) -> bool:
        """Whether the layer can go on with some rows only: its mixer picks them."""
        return len(self._mixers) > 0

    def __call__(
        self, x: Array | None, residual: Array, batch: Batch, cache: ModelCache, rows: Array | None = None
    ) -> Array:
        """Add ``x``, of the layer before, into ``residual``, both ``[N, D]``; return this layer's output.

        With ``rows`` ``[R]``, all that comes after the mixer is computed for those alone: ``[R, D]``.
        """
        if self._mixers:
            x = self._mix(self._input_norm(x, residual), residual, batch, cache, rows)
            x = x if self._post_mixer_norm is None else self._post_mixer_norm(None, x)
        if self._ffn is not None:
            x = self._all_reduce(self._ffn(self._mlp_norm(x, residual, rows)))
            x = x if self._post_mlp_norm is None else self._post_mlp_norm(None, x)
        assert x is not None, "a layer without mixer and ffn"
        return x

    def _mix(
        self, normed: Array, residual: Array, batch: Batch, cache: ModelCache, rows: Array | None
    ) -> Array:
        """Return the last mixer's result; those of the others are added into ``residual`` at once."""
        for mixer, scale in zip(self._mixers[:-1], self._scales[:-1], strict=True):
            x = self._all_reduce(mixer(normed, batch, cache, rows))
            self._ops.add_scaled(x, residual, scale, rows)
        x = self._all_reduce(self._mixers[-1](normed, batch, cache, rows))
        return x if self._scales[-1] == 1 else self._ops.scale(x, self._scales[-1])


def _norm(context: LayerContext, name: str, norms: NormSpec) -> RMSNorm:
    return RMSNorm(context.ops, context.weights, f"{context.prefix}.{name}", norms)


class Decoder:
    """A decoder-only model of any layers that :mod:`wisp_runtime.layers.registry` has code for.

    Attributes:
        weights: weights by name.
        expert_load: counters of the load of its experts.

    Args:
        spec: its dimensions and layers.
        weights: the weights that :func:`wisp_plan.weights.declaration.declare` lists.
        ops: the device.
        comm: the ranks that share the model; each has heads and inner sizes of its own in ``spec``.
    """

    def __init__(self, spec: ModelSpec, weights: Weights, ops: Ops, comm: Comm = NO_COMM) -> None:
        self.spec = spec
        self._ops, self.weights = ops, weights
        self._embeddings = weights["embeddings.weight"]
        self._ropes = RopeTables(ops, spec.max_context)
        self.expert_load = ExpertLoad(spec, ops)
        counts = map(self.expert_load.of_layer, range(len(spec.layers)))
        self._layers = [
            Layer(LayerContext(ops, weights, spec, index, self._ropes, comm, expert_counts=of_layer), layer)
            for index, (layer, of_layer) in enumerate(zip(spec.layers, counts, strict=True))
        ]
        self._norm = RMSNorm(ops, weights, "norm", spec.final_norm)
        self._head = weights[f"{'embeddings' if spec.ties_embeddings else 'head'}.weight"]

    def forward(
        self, batch: Batch, cache: ModelCache, probe: Probe | None = None, *, layers: int | None = None
    ) -> Output:
        """Run one step: write the K and V of its tokens to ``cache`` and return logits.

        Nobody reads what the last layer leaves of the other rows, so there they end with its attention.

        Args:
            batch: N tokens.
            cache: caches of all layers.
            probe: called with 0 and the embeddings, then with l and the stream after layer l, ``[N, D]`` on
                the host; for comparing with another implementation. The last layer then computes every row.
            layers: number of the first layers that run; None: all.
        """
        run = self._layers[:layers]
        wanted = batch.logit_rows if len(batch.logit_rows) < len(batch.tokens) else None
        is_narrowed = probe is None and not batch.wants_states and run[-1].selects_rows
        rows = wanted if is_narrowed else None
        spec, x = self.spec, None
        residual = self._scaled(self._ops.embedding(batch.tokens, self._embeddings), spec.embedding_scale)
        for index, layer in enumerate(run):
            self._show(probe, index, x, residual)
            is_last = index + 1 == len(run)
            x = layer(x, residual, batch, cache, rows if is_last else None)
        self._show(probe, len(run), x, residual)
        states = normed = self._norm(x, residual, rows)
        if rows is not wanted:
            normed = self._ops.gather_rows(normed, wanted)
        logits = self._scaled(self._ops.logits(normed, self._head), spec.logits_scale)
        return Output(logits, normed, states if batch.wants_states else None)

    def _scaled(self, x: Array, factor: float) -> Array:
        return x if factor == 1 else self._ops.scale(x, factor)

    def rope_table(self, attention: AttentionSpec) -> RopeTable:
        """Return the cos/sin tables of an attention layer."""
        return self._ropes.of(attention)

    def _show(self, probe: Probe | None, layer: int, x: Array | None, residual: Array) -> None:
        if probe is not None:
            stream = self._ops.to_host(residual)
            probe(layer, stream.copy() if x is None else stream + self._ops.to_host(self._ops.combined(x)))
