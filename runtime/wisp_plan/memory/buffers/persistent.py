"""Buffers of the persistent decode kernel: what its thread blocks exchange, and the table of weights."""

from __future__ import annotations

from wisp_plan.memory.batch_sizes import BATCH_SIZES
from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.buffers.widths import widest, widest_ffn
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec

MAX_BLOCKS, MAX_PARTIALS = 160, 16
"""Thread blocks of the kernel, partial results of a sequence's attention."""

COUNTERS, LAYER_WORDS = 3, 15
"""Counters of the grid's barrier; of a layer pointers to its weights, and two float32, its cache's scales."""

DELTA_WORDS = 5
"""Pointers to the weights of a Gated DeltaNet beside its projections."""

SHARED_GATE, SINKS, ROUTER_BIAS = "shared_gate.weight", "sinks", "router.bias"

MAX_MOE_SEQUENCES = 32
"""Sequences of a step with experts: the kernel has a bit for each."""


def layer_words(spec: ModelSpec) -> int:
    """Return the words of a layer in the table."""
    return LAYER_WORDS + len(optional_weights(spec))


def optional_weights(spec: ModelSpec) -> tuple[str, ...]:
    """Return the weights behind a layer's words that only some models have, in their order."""
    names = {
        SHARED_GATE: _shared_experts(spec),
        SINKS: any(mixer.has_sinks for mixer in spec.mixers(AttentionSpec)),
        ROUTER_BIAS: any(ffn.router.has_bias for ffn in spec.ffns(MoeSpec)),
    }
    return tuple(name for name, is_held in names.items() if is_held)


def persistent(spec: ModelSpec, step: StepSizes) -> tuple[Buffer, ...]:
    """Return the buffers of the kernel; counted on every GPU, though only a Hopper runs it."""
    rows = batch_size(max(step.max_sequences, step.min_batch))
    if spec.ffns(MoeSpec):
        rows = min(rows, MAX_MOE_SEQUENCES)
    return *exchanged(spec, rows), layer_table(spec)


def batch_size(sequences: int) -> int:
    """Return the variant for ``sequences``, or the largest."""
    return next((size for size in BATCH_SIZES if size >= sequences), BATCH_SIZES[-1])


def exchanged(spec: ModelSpec, rows: int) -> tuple[Buffer, ...]:
    """Return the buffers that thread blocks exchange, zeroed.

    Args:
        rows: sequences of the largest variant.
    """
    width = widest(spec, "query_size")
    return (
        _exchanged("pre_rope_qkv", (2 * rows, widest(spec, "projected_size")), is_float=True),
        *_of_delta_nets(spec, rows),
        _exchanged("normed", (rows, spec.hidden)),
        _exchanged("attended", (rows, width)),
        _exchanged("gated", _gated(spec, rows)),
        _exchanged("square_sums", (rows, MAX_BLOCKS), is_float=True),
        _exchanged("partials", (MAX_PARTIALS * rows, width), is_float=True),
        _exchanged("partial_stats", (MAX_PARTIALS * rows, widest(spec, "heads"), 2), is_float=True),
        Buffer("step.splits_done", (rows * widest(spec, "kv_heads"),), "uint32", is_zeroed=True),
        Buffer("step.counters", (COUNTERS,), "uint32", is_zeroed=True),
        *_of_experts(spec, rows),
    )


def _gated(spec: ModelSpec, rows: int) -> tuple[int, int]:
    """Return the shape of the activations between an MLP's projections: a row for each expert of a token."""
    mixtures = spec.ffns(MoeSpec)
    chosen = max((ffn.router.chosen for ffn in mixtures), default=1) + _shared_experts(spec)
    return rows * chosen, max((ffn.inner for ffn in mixtures), default=widest_ffn(spec))


def _of_experts(spec: ModelSpec, rows: int) -> tuple[Buffer, ...]:
    """Return logits of the router and of a shared expert's gate, of even and odd layers; none if dense."""
    experts = max((ffn.router.experts for ffn in spec.ffns(MoeSpec)), default=0) + _shared_experts(spec)
    return (_exchanged("router_logits", (2 * rows, experts), is_float=True),) if experts else ()


def _shared_experts(spec: ModelSpec) -> int:
    return int(any(ffn.shared is not None for ffn in spec.ffns(MoeSpec)))


def _of_delta_nets(spec: ModelSpec, rows: int) -> tuple[Buffer, ...]:
    """Return Q, K, V, Z, b and a of Gated DeltaNet, of even and odd layers; none without."""
    widths = [net.conv_size + net.value_heads * (net.value_size + 2) for net in spec.mixers(DeltaNetSpec)]
    return (_exchanged("projected", (2 * rows, max(widths)), is_float=True),) if widths else ()


def layer_table(spec: ModelSpec) -> Buffer:
    """Return the pointers to each layer's weights, and its cache's scales; behind them those of DeltaNets."""
    deltas = sum(isinstance(layer.mixer, DeltaNetSpec) for layer in spec.layers)
    return Buffer("step.layers", (len(spec.layers) * layer_words(spec) + deltas * DELTA_WORDS,), "uint64")


def _exchanged(name: str, shape: tuple[int, ...], *, is_float: bool = False) -> Buffer:
    return Buffer(f"step.{name}", shape, "float32" if is_float else "bfloat16", is_zeroed=True)
