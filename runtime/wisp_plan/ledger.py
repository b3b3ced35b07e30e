"""The byte ledger: what serving a model occupies, row by row.

Pure: a :class:`~wisp_plan.spec.ModelSpec` and settings in, numbers out. Whether that fits is decided in
:mod:`.fit`. Weights and KV cache are exact (but for the
padding of rows); workspace is the sum of the arrays of one step at its largest;
graphs and CUDA context are estimates on the safe side, which a runtime replaces by what it measures.
"""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.formats import Device, kv_bytes_per_token, weight_bytes
from wisp_plan.sizes import MIB
from wisp_plan.spec import ModelSpec

CONTEXT_BYTES = 640 * MIB
"""CUDA's context with kernels and libraries; an H200 (driver 580.159) shows 527 MiB bare, 603 with cuBLAS."""

GRAPH_NODE_BYTES = 8 << 10
"""Device memory of a kernel in a CUDA graph; an H200 (driver 580.159) takes 2 to 3 KiB, without arguments."""

GRAPH_KERNELS_A_LAYER = 6
CPU_SCORES = 8 << 20
"""Attention scores that the CPU backend computes at once; the mask and temporaries take as much again."""

SPLITS = 32
"""Parts into which the attention of one long sequence may be divided, each with its partial result."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """What the ledger depends on besides the model; everything is decided, nothing is ``auto``.

    Attributes:
        device: where the model runs.
        quantization: of the projections (ignored on ``cpu``).
        kv_dtype: of keys and values: bf16, fp8, or float32 on ``cpu``.
        kv_blocks, block_tokens: P, Tb.
        max_context: tokens a sequence may hold.
        max_concurrent: sequences in one step.
        max_step_tokens: tokens a step may compute.
        context_bytes: of the CUDA context, when it was measured; None takes the estimate.
    """

    device: Device
    quantization: str
    kv_dtype: str
    kv_blocks: int
    block_tokens: int
    max_context: int
    max_concurrent: int
    max_step_tokens: int
    context_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the ledger: what, how much, and how that came about."""

    name: str
    size_bytes: int
    explanation: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """All that a serving process occupies on its device.

    Attributes:
        weights_bytes: the weights as they are held in memory, without scales.
        scales_bytes: the scales of quantized weights.
        kv_cache_bytes: P blocks of Tb tokens.
        workspace_bytes: activations, logits and attention's partial results of one step.
        graphs_bytes: captured CUDA graphs.
        context_bytes: CUDA's own.
        kv_bytes_per_token: of one sequence's token, over all layers.
        options: what it was computed for.
    """

    weights_bytes: int
    scales_bytes: int
    kv_cache_bytes: int
    workspace_bytes: int
    graphs_bytes: int
    context_bytes: int
    kv_bytes_per_token: int
    options: LedgerOptions

    @property
    def total_bytes(self) -> int:
        """The sum of all rows."""
        return sum(row.size_bytes for row in self.rows())

    def rows(self) -> tuple[Row, ...]:
        """Return the ledger line by line, as a table shows it; rows of 0 bytes are included."""
        o = self.options
        held = "float32" if o.device == "cpu" else o.quantization
        tokens = o.kv_blocks * o.block_tokens
        return (
            Row("weights", self.weights_bytes, f"held as {held}"),
            Row("scales", self.scales_bytes, f"of {held} weights"),
            Row(
                "KV cache",
                self.kv_cache_bytes,
                f"{tokens} tokens of {self.kv_bytes_per_token} B, {o.kv_dtype}",
            ),
            Row("workspace", self.workspace_bytes, f"a step of {o.max_step_tokens} tokens"),
            Row("graphs", self.graphs_bytes, f"captured steps of up to {o.max_concurrent} sequences"),
            Row("CUDA context", self.context_bytes, "driver and kernels"),
        )


def compute_ledger(spec: ModelSpec, options: LedgerOptions) -> Ledger:
    """Count what serving ``spec`` under ``options`` occupies."""
    weights = weight_bytes(spec, options.quantization, options.device)
    per_token = kv_bytes_per_token(spec, options.kv_dtype)
    is_cuda = options.device == "cuda"
    context = CONTEXT_BYTES if options.context_bytes is None else options.context_bytes
    return Ledger(
        weights_bytes=weights.weights,
        scales_bytes=weights.scales,
        kv_cache_bytes=options.kv_blocks * options.block_tokens * per_token,
        workspace_bytes=workspace_bytes(spec, options),
        graphs_bytes=graphs_bytes(spec, options.max_concurrent) if is_cuda else 0,
        context_bytes=context if is_cuda else 0,
        kv_bytes_per_token=per_token,
        options=options,
    )


def workspace_bytes(spec: ModelSpec, options: LedgerOptions) -> int:
    """Count the arrays that live at the same time in the largest step."""
    element = 4 if options.device == "cpu" else 2
    activations = options.max_step_tokens * _activation_width(spec) * element
    # Logits in float32, and a copy for sampling to sort; a token's bitmask is one bit of V.
    logits = options.max_concurrent * (2 * spec.vocab * 4 + spec.vocab // 8)
    block_tables = options.max_concurrent * -(-options.max_context // options.block_tokens) * 4
    rotations = (
        spec.max_context * (spec.rope.rotary_size or spec.head_size) * 4
    )  # a cosine and a sine for each pair of channels
    return activations + logits + block_tables + rotations + _attention_bytes(spec, options)


def _activation_width(spec: ModelSpec) -> int:
    """Numbers per token alive at once: residual, its norm, and the wider of attention and MLP."""
    queries, keys = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    attention = 2 * queries + 2 * keys
    return 2 * spec.hidden + max(attention, 3 * spec.mlp)


def _attention_bytes(spec: ModelSpec, options: LedgerOptions) -> int:
    """Count attention's float32 scratch: partial results on CUDA, scores and one context on the CPU."""
    if options.device == "cuda":
        return options.max_concurrent * spec.heads * SPLITS * (spec.head_size + 2) * 4
    context = options.max_context
    scores = min(options.max_step_tokens, max(1, CPU_SCORES // (spec.heads * context))) * spec.heads * context
    return 2 * scores * 4 + 2 * context * spec.kv_heads * spec.head_size * 4


def graphs_bytes(spec: ModelSpec, max_concurrent: int) -> int:
    """Estimate captured CUDA graphs: one per batch size that is a power of two, up to ``max_concurrent``."""
    buckets = (max_concurrent - 1).bit_length() + 1
    return buckets * (spec.layers * GRAPH_KERNELS_A_LAYER + 8) * GRAPH_NODE_BYTES
