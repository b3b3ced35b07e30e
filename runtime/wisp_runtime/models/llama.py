"""Llama, and the families that differ from it by switches of the spec alone (Mistral, Qwen2, Qwen3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.layers.cache import KVCache
from wisp_runtime.layers.ffn.dense import GatedMLP, mlp_parameters
from wisp_runtime.layers.mixers.attention import Attention, attention_parameters
from wisp_runtime.layers.norm import RMSNorm
from wisp_runtime.layers.rotary import rotation
from wisp_runtime.ops.protocol.backend import Ops, Rotation
from wisp_runtime.ops.protocol.persistent import StepLayer, StepWeights, WholeStep
from wisp_runtime.weights.arena import Parameter, Part, Weights

Probe = Callable[[int, Array], None]

_STEP_NAMES = (
    *("qkv.weight", "output.weight", "gate_up.weight", "down.weight"),
    *("qkv.bias", "output.bias", "gate_up.bias", "down.bias"),
    *("input_norm.weight", "mlp_norm.weight", "q_norm.weight", "k_norm.weight"),
)
"""Of a layer, in the order of :class:`StepLayer`."""


class Block:
    """One layer: attention and MLP, each with the norm before it."""

    def __init__(self, ops: Ops, weights: Weights, spec: ModelSpec, layer: int) -> None:
        prefix = f"layers.{layer}"
        self._input_norm = RMSNorm(ops, weights, f"{prefix}.input_norm", spec.norm_eps)
        self._attention = Attention(ops, weights, spec, layer)
        self._mlp_norm = RMSNorm(ops, weights, f"{prefix}.mlp_norm", spec.norm_eps)
        self._mlp = GatedMLP(ops, weights, prefix)

    def __call__(
        self,
        x: Array | None,
        residual: Array,
        rotation: Rotation,
        batch: Batch,
        cache: KVCache,
        rows: Array | None = None,
    ) -> Array:
        """Add ``x``, of the layer before, into ``residual``, both ``[N, D]``; return this layer's output.

        With ``rows`` ``[R]``, all that comes after attention is computed for those alone: ``[R, D]``.
        """
        x = self._attention(self._input_norm(x, residual), rotation, batch, cache, rows)
        return self._mlp(self._mlp_norm(x, residual, rows))


class Llama:
    """A Llama-like decoder.

    Attributes:
        whole_step: what runs decode steps in one launch, if anything does.

    Args:
        spec: its dimensions and switches.
        weights: holds what :meth:`parameters` lists.
        ops: the device.
    """

    def __init__(self, spec: ModelSpec, weights: Weights, ops: Ops) -> None:
        self.spec = spec
        self._ops, self._weights = ops, weights
        self.whole_step: WholeStep | None = None
        self._embeddings = weights["embeddings.weight"]
        self._rotation = rotation(ops, spec)
        self._blocks = [Block(ops, weights, spec, layer) for layer in range(spec.layers)]
        self._norm = RMSNorm(ops, weights, "norm", spec.norm_eps)
        self._head = weights[f"{'embeddings' if spec.ties_embeddings else 'head'}.weight"]

    def forward(self, batch: Batch, cache: KVCache, probe: Probe | None = None) -> Array:
        """Run one step: write the K and V of its tokens to ``cache`` and return ``[R, V]`` float32 logits.

        Nobody reads what the last layer leaves of the other rows, so there they end with its attention.

        Args:
            batch: N tokens.
            cache: of all layers.
            probe: called with 0 and the embeddings, then with l and the stream after layer l, ``[N, D]`` on
                the host; for comparing with another implementation. The last layer then computes every row.
        """
        if probe is None and self.whole_step is not None and self.whole_step.takes(batch):
            return self.whole_step(batch, cache.keys, cache.values)
        wanted = batch.logit_rows if len(batch.logit_rows) < len(batch.tokens) else None
        rows = wanted if probe is None else None
        residual, x = self._ops.embedding(batch.tokens, self._embeddings), None
        for layer, block in enumerate(self._blocks):
            self._show(probe, layer, x, residual)
            is_last = layer + 1 == len(self._blocks)
            x = block(x, residual, self._rotation, batch, cache, rows if is_last else None)
        self._show(probe, len(self._blocks), x, residual)
        normed = self._norm(x, residual, rows)
        if rows is not wanted:
            normed = self._ops.take_rows(normed, wanted)
        return self._ops.logits(normed, self._head)

    def use_whole_steps(self, max_sequences: int) -> str | None:
        """Run decode steps of up to ``max_sequences`` in one launch from here on; say why not if not."""
        made = self._ops.whole_step(self.spec, self.step_weights(), self._rotation, max_sequences)
        self.whole_step = None if isinstance(made, str) else made
        return made if isinstance(made, str) else None

    def step_weights(self) -> StepWeights:
        """Return the weights for a device that runs a whole step at once."""
        weights, layers = self._weights, range(self.spec.layers)
        return StepWeights(
            self._embeddings,
            self._head,
            weights["norm.weight"],
            [StepLayer(*(weights.get(f"layers.{i}.{name}") for name in _STEP_NAMES)) for i in layers],
        )

    def _show(self, probe: Probe | None, layer: int, x: Array | None, residual: Array) -> None:
        if probe is not None:
            stream = self._ops.to_host(residual)
            probe(layer, stream.copy() if x is None else stream + self._ops.to_host(x))

    @staticmethod
    def parameters(spec: ModelSpec) -> Iterator[Parameter]:
        """List the weights in the order in which a step reads them."""
        embeddings = (Part("model.embed_tokens.weight", spec.vocab),)
        yield Parameter("embeddings.weight", (spec.vocab, spec.hidden), embeddings)
        for layer in range(spec.layers):
            yield _norm(spec, f"layers.{layer}.input_norm", f"model.layers.{layer}.input_layernorm")
            yield from attention_parameters(spec, layer)
            yield _norm(spec, f"layers.{layer}.mlp_norm", f"model.layers.{layer}.post_attention_layernorm")
            yield from mlp_parameters(spec, layer)
        yield _norm(spec, "norm", "model.norm")
        if not spec.ties_embeddings:
            head = (Part("lm_head.weight", spec.vocab),)
            yield Parameter("head.weight", (spec.vocab, spec.hidden), head)


def _norm(spec: ModelSpec, name: str, source: str) -> Parameter:
    return Parameter(f"{name}.weight", (spec.hidden,), (Part(f"{source}.weight", spec.hidden),))
