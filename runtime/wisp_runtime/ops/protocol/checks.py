"""Refuse arrays that an op cannot take, before it reads past one. Every device uses these checks."""

from __future__ import annotations

from typing import Any

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.moe import RouterSpec
from wisp_runtime.batch import Array, Batch, SamplingBatch
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.protocol.attention import UNQUANTIZED, KvEncoding
from wisp_runtime.ops.protocol.moe import ExpertWeights, Routing
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights, MambaWeights, RecurrentStep

_PER_ROW = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("seeds", "steps", "repetition_penalty", "presence_penalty", "frequency_penalty"),
)


def same_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    """Require exactly ``shape``."""
    if array.shape != shape:
        raise ShapeError(f"{name} is {list(array.shape)}, must be {list(shape)}")


def rank(name: str, array: Array, dimensions: int) -> None:
    """Require a number of dimensions."""
    if array.ndim != dimensions:
        raise ShapeError(f"{name} is {list(array.shape)}, must have {dimensions} dimensions")


def columns(name: str, array: Array, count: int) -> None:
    """Require a matrix of ``count`` columns."""
    if array.ndim != 2 or array.shape[1] != count:
        raise ShapeError(f"{name} is {list(array.shape)}, must be [any, {count}]")


def indices(name: str, array: Array, rows: int) -> None:
    """Require a vector of indices into ``rows`` rows."""
    rank(name, array, 1)
    if len(array) and not 0 <= int(array.min()) <= int(array.max()) < rows:
        raise ShapeError(f"{name} has values from {array.min()} to {array.max()}, must be in 0..{rows - 1}")


def ascending(name: str, array: Array, rows: int) -> None:
    """Require a vector of indices into ``rows`` rows, each larger than the one before."""
    indices(name, array, rows)
    if not (array[1:] > array[:-1]).all():
        raise ShapeError(f"{name} must ascend, none twice; it has {array.tolist()[:16]}")


def added(x: Array, residual: Array, rows: Array | None) -> None:
    """Require a row of ``x`` for each row of the residual, or for each of ``rows``, none twice."""
    if rows is None:
        same_shape("residual", residual, x.shape)
        return
    columns("residual", residual, x.shape[-1])
    same_shape("x", x, (len(rows), residual.shape[1]))
    ascending("rows", rows, len(residual))


def rope(x: Array, cosines: Array, sines: Array) -> None:
    """Require one row of angles a token, and heads at least as wide as the rotation."""
    rank("x", x, 3)
    same_shape("sines", sines, cosines.shape)
    if len(cosines) != len(x) or 2 * cosines.shape[1] > x.shape[2]:
        raise ShapeError(
            f"cosines is {list(cosines.shape)}, x is {list(x.shape)}; must be [N, R / 2], R <= Dh"
        )


def cache(
    keys: Array, values: Array, head_shape: tuple[int, ...], encoding: KvEncoding = UNQUANTIZED
) -> None:
    """Require one layer's cache ``[P, Hkv, Tb, Dh]`` of that ``(Hkv, Dh)``; of bytes if quantized."""
    rank("keys", keys, 4)
    same_shape("values", values, keys.shape)
    heads, row = head_shape[0], encoding.format.row_elements(head_shape[-1])
    if (keys.shape[1], keys.shape[3]) != (heads, row):
        raise ShapeError(f"keys is {list(keys.shape)}, must be [P, {heads}, Tb, {row}]")


def attention(q: Array, keys: Array, batch: Batch) -> None:
    """Require head counts that divide, and a batch whose tables reach all of each context."""
    if q.shape[1] % keys.shape[1]:
        raise ShapeError(f"{q.shape[1]} query heads are no multiple of {keys.shape[1]} KV heads")
    _splits(batch, len(q))
    starts, contexts = batch.query_starts_host, batch.context_lengths_host
    capacity = batch.block_tables.shape[1] * keys.shape[2]
    for row, context in enumerate(contexts):
        queries = starts[row + 1] - starts[row]
        if not 0 <= queries <= context <= capacity:
            raise ShapeError(
                f"sequence {row}: {queries} queries, context {context}, blocks for {capacity} tokens"
            )


def _splits(batch: Batch, tokens: int) -> None:
    starts, sequences = batch.query_starts_host, len(batch.context_lengths_host)
    if len(starts) != sequences + 1 or starts[0] != 0 or starts[-1] != tokens:
        raise ShapeError(f"query_starts {starts} do not split {tokens} tokens into {sequences} sequences")


def delta_net(
    projected: Array, gates: Array, weights: DeltaNetWeights, spec: DeltaNetSpec, step: RecurrentStep
) -> None:
    """Require projections, weights and a step as ``spec`` says; each sequence has a state's slot."""
    columns("projected", projected, spec.conv_size + spec.value_heads * spec.value_size)
    same_shape("gates", gates, (len(projected), 2 * spec.value_heads))
    same_shape("conv", weights.conv, (spec.conv_size, spec.kernel))
    for name in ("decay", "step_bias"):
        same_shape(name, getattr(weights, name), (spec.value_heads,))
    same_shape("norm", weights.norm, (spec.value_size,))
    recurrent_step(step, spec, len(projected))


def mamba(projected: Array, weights: MambaWeights, spec: MambaSpec, step: RecurrentStep) -> None:
    """Require projections, weights and a step as ``spec`` says; each sequence has a state's slot."""
    columns("projected", projected, spec.projected_size)
    same_shape("conv", weights.conv, (spec.conv_size, spec.kernel))
    if weights.conv_bias is not None:
        same_shape("conv_bias", weights.conv_bias, (spec.conv_size,))
    for name in ("decay", "step_bias", "skip"):
        same_shape(name, getattr(weights, name), (spec.heads,))
    if (weights.norm is None) != (spec.gating == "gate"):
        raise ShapeError(f"gating {spec.gating} with norm {weights.norm}")
    if weights.norm is not None:
        same_shape("norm", weights.norm, (spec.inner,))
    recurrent_step(step, spec, len(projected))


def recurrent_step(step: RecurrentStep, spec: DeltaNetSpec | MambaSpec, tokens: int) -> None:
    """Require states and inputs of as many slots, as ``spec`` says, and a batch of ``tokens`` with slots."""
    states, inputs = spec.cache().shapes
    same_shape("states", step.states, (len(step.inputs), *states))
    same_shape("inputs", step.inputs, (len(step.states), *inputs))
    state_slots(step.batch, tokens)


def state_slots(batch: Batch, tokens: int) -> None:
    """Require a slot for the state of each sequence, and query starts that split the tokens."""
    _splits(batch, tokens)
    if batch.state_slots is None:
        raise ShapeError("state_slots is None, and the layer has a state")
    same_shape("state_slots", batch.state_slots, (len(batch.context_lengths_host),))


def router(
    x: Array,
    weight: Array,
    spec: RouterSpec,
    bias: Array | None,
    correction: Array | None,
    shared_gate: Array | None,
    counts: Array | None,
) -> None:
    """Require logits of each expert, and the spec's biases."""
    rank("x", x, 2)
    if shared_gate is not None:
        same_shape("shared_gate", shared_gate, (1, x.shape[1]))
    same_shape("weight", weight, (spec.experts, x.shape[1]))
    for name, array, is_there in (
        ("bias", bias, spec.has_bias),
        ("correction", correction, spec.has_correction_bias),
    ):
        if (array is not None) != is_there:
            raise ShapeError(f"{name} is {'missing' if array is None else 'there'}, unlike the spec's")
        if array is not None:
            same_shape(name, array, (spec.experts,))
    if counts is not None:
        same_shape("counts", counts, (2, spec.experts))


def mixture(x: Array, routing: Routing, experts: ExpertWeights, added: Array | None) -> None:
    """Require experts that are there, and one weight for each."""
    rank("x", x, 2)
    rank("experts", routing.experts, 2)
    same_shape("weights", routing.weights, (len(x), routing.experts.shape[1]))
    same_shape("experts", routing.experts, routing.weights.shape)
    indices("experts", routing.experts.reshape(-1), len(experts.gate_up))
    if len(experts.down) != len(experts.gate_up):
        raise ShapeError(f"{len(experts.gate_up)} experts have gate and up, {len(experts.down)} have down")
    columns("x", x, experts.gate_up[0].inputs)
    if added is not None:
        same_shape("added", added, x.shape)
    if routing.shared_logits is not None:
        same_shape("shared_logits", routing.shared_logits, (len(x),))


def sampling(logits: Array, batch: SamplingBatch) -> None:
    """Require one row of every parameter per row of logits, and ids inside the vocabulary."""
    rank("logits", logits, 2)
    rows, vocab = logits.shape
    for name in _PER_ROW:
        same_shape(name, getattr(batch, name), (rows,))
    _ragged("count_ids", batch.count_starts, batch.count_ids, batch.counts, (rows, vocab))
    _ragged("bias_ids", batch.bias_starts, batch.bias_ids, batch.biases, (rows, vocab))
    for name in ("seen", "bitmask"):
        if (bits := getattr(batch, name)) is not None:
            same_shape(name, bits, (rows, -(-vocab // 32)))
    if batch.seen is None and (batch.repetition_penalty != 1).any():
        raise ShapeError("seen is None, and a row has a repetition penalty")


def _ragged(name: str, starts: Any, ids: Array, values: Array, size: tuple[int, int]) -> None:
    same_shape(f"starts of {name}", starts, (size[0] + 1,))
    same_shape(f"values of {name}", values, ids.shape)
    if int(starts[-1]) != len(ids):
        raise ShapeError(f"{name} has {len(ids)} entries, its starts end at {starts[-1]}")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < size[1]:
        raise ShapeError(f"{name} holds an id outside 0..{size[1] - 1}")
