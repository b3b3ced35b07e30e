"""Byte ledger: memory of a served model, row by row.

Pure: a :class:`~wisp_plan.spec.model.ModelSpec` and settings in, numbers out. :mod:`wisp_plan.fit` decides
whether that fits. Weights, caches and, on a GPU, workspace are the runtime's allocations; graphs and CUDA
context are estimates on the safe side, the latter replaced by a runtime's measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.batch_buckets import buckets
from wisp_plan.memory.batch_sizes import MIN_EQUAL_QUANTIZED
from wisp_plan.memory.buffers.cpu import cpu_bytes
from wisp_plan.memory.buffers.gpu import gpu_buffers
from wisp_plan.memory.cache import CacheSizes, Pool, cache_sizes, model_groups
from wisp_plan.memory.loading import loading_bytes
from wisp_plan.memory.step import MAX_SM_COUNT, StepSizes
from wisp_plan.quantization.packed_format import PACKED_FORMATS, W8A8
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import MIB, counted
from wisp_plan.weights.sizes import Device, code_columns, weight_bytes

CONTEXT_BYTES = 640 * MIB
"""CUDA's context with kernels and libraries; an H200 (driver 580.159) shows 527 MiB bare, 603 with cuBLAS."""

GRAPH_NODE_BYTES = 3 << 10
"""Device memory of a kernel in a CUDA graph; an H200 (driver 580.159) takes 2 to 3 KiB, without arguments."""

GRAPH_KERNELS_A_LAYER = 8
GRAPH_KERNELS_BESIDE = 12
GRAPH_KINDS = ("greedy", "sampled", "logprobs", "forward")
"""Graphs of each size: all rows take their best token, some are sampled, some report log-probabilities; and
the forward pass alone, of steps that are sampled later."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Settings that the ledger depends on besides the model; nothing is ``auto``.

    Attributes:
        device: device of the model.
        quantization: format of the projections, as :func:`.held.held_format` takes it (ignored on ``cpu``).
        kv_dtype: format of keys and values, by name; on ``cpu`` bf16 is float32.
        kv_bf16_layers: number of first and of last layers whose keys and values stay bf16.
        kv_blocks, block_tokens: P, Tb.
        max_context: tokens a sequence may hold.
        max_concurrent: sequences in one step.
        max_step_tokens: tokens a step may compute.
        context_bytes: measured size of the CUDA context; None: the estimate.
        sm_count: SMs of the GPU.
        formats: packed formats that the device has kernels for, and W8A8 (:mod:`.kernel_formats`).
        deterministic: whether a row's bits are the same in steps of all sizes.
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
    sm_count: int = MAX_SM_COUNT
    kv_bf16_layers: int = 0
    formats: tuple[str, ...] = (*PACKED_FORMATS, W8A8)
    deterministic: bool = False

    @property
    def kv(self) -> KvLayers:
        """Formats of the layers' keys and values."""
        return KvLayers.of(self.kv_dtype, self.device, self.kv_bf16_layers)

    @property
    def step(self) -> StepSizes:
        """The largest step."""
        return StepSizes(
            self.max_step_tokens,
            self.max_concurrent,
            self.max_context,
            self.block_tokens,
            self.sm_count,
            self.kv,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the ledger: name, size, explanation."""

    name: str
    size_bytes: int
    explanation: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """Memory of a serving process on its device.

    Attributes:
        weights_bytes: weights in memory, without scales.
        scales_bytes: scales of quantized weights.
        workspace_bytes: activations, logits and attention's partial results of one step.
        graphs_bytes: captured CUDA graphs.
        context_bytes: CUDA context.
        cache: caches of all layers.
        options: settings of the computation.
        loading_bytes: memory beside the weights while they are read, free again before caches are made.
        weight_format: formats of the projections by name: ``bf16``, ``fp8``, ``int4, bf16``.
        weight_description: the same for people, with what the checkpoint has.
    """

    weights_bytes: int
    scales_bytes: int
    workspace_bytes: int
    graphs_bytes: int
    context_bytes: int
    cache: CacheSizes
    options: LedgerOptions
    loading_bytes: int
    weight_format: str
    weight_description: str

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes of the caches: blocks of keys and values, recurrent states."""
        return self.cache.size_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent states of running sequences."""
        return self.cache.state_slots * self.cache.slot_bytes

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the recurrent states that the prefix cache keeps."""
        return self.cache.snapshots * self.cache.slot_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one sequence's token, over all layers; those with a window keep it for a while only."""
        return sum(pool.group.token_bytes for pool in self.cache.pools)

    @property
    def kv_bytes_per_context_token(self) -> int:
        """Bytes by which each token lengthens a sequence, of layers without a window within the context."""
        return sum(pool.group.token_bytes for pool in self.cache.pools if not self._is_windowed(pool))

    @property
    def kv_window_bytes(self) -> int:
        """Most bytes that the windows of one sequence take while it decodes, however long it is."""
        tokens, block_tokens = self.options.max_context, self.options.block_tokens
        return sum(
            pool.group.decode_blocks(tokens, block_tokens) * block_tokens * pool.group.token_bytes
            for pool in self.cache.pools
            if self._is_windowed(pool)
        )

    def _is_windowed(self, pool: Pool) -> bool:
        window = pool.group.spec.window
        return window is not None and window < self.options.max_context

    @property
    def total_bytes(self) -> int:
        """The sum of all rows."""
        return sum(row.size_bytes for row in self.rows())

    def rows(self) -> tuple[Row, ...]:
        """Return the ledger line by line, as a table shows it; rows of 0 bytes are included."""
        o = self.options
        return (
            Row("weights", self.weights_bytes, self.weight_description),
            Row("scales", self.scales_bytes, "scales and zero points, padding included"),
            Row("KV cache", self.cache.paged_bytes, f"{_tokens_held(self.cache)}, {o.kv}"),
            Row(
                "states",
                self.state_bytes,
                f"recurrent layers of {counted(self.cache.state_slots, 'sequence')}",
            ),
            Row(
                "snapshots",
                self.snapshot_bytes,
                f"{counted(self.cache.snapshots, 'state')} of the prefix cache",
            ),
            Row("workspace", self.workspace_bytes, f"a step of {o.max_step_tokens} tokens"),
            Row(
                "graphs",
                self.graphs_bytes,
                f"captured steps of up to {counted(o.max_concurrent, 'sequence')}",
            ),
            Row("CUDA context", self.context_bytes, "driver and kernels"),
            Row("loading", self.beyond_serving_bytes, "while weights are read, more than serving takes"),
        )

    @property
    def beyond_serving_bytes(self) -> int:
        """Bytes by which reading the weights takes more than the caches and buffers that follow."""
        following = self.kv_cache_bytes + self.workspace_bytes + self.graphs_bytes
        return max(0, self.loading_bytes - following)


def _tokens_held(cache: CacheSizes) -> str:
    """Return the tokens that the blocks hold, and the bytes of one, of layers with equal windows together."""
    token_bytes: dict[tuple[int | None, int], int] = {}
    for pool in cache.pools:
        key = pool.group.spec.window, pool.blocks * cache.block_tokens
        token_bytes[key] = token_bytes.get(key, 0) + pool.group.token_bytes
    windows_last = sorted(token_bytes.items(), key=lambda item: item[0][0] or 0)
    return " and ".join(
        f"{tokens} tokens of {size} B" + (f" in windows of {window}" if window else "")
        for (window, tokens), size in windows_last
    )


def compute_ledger(spec: ModelSpec, options: LedgerOptions) -> Ledger:
    """Count the memory of serving ``spec`` under ``options``."""
    weights = weight_bytes(spec, options.quantization, options.device, options.formats)
    is_cuda = options.device == "cuda"
    context = CONTEXT_BYTES if options.context_bytes is None else options.context_bytes
    return Ledger(
        weights_bytes=weights.weights,
        scales_bytes=weights.scales,
        workspace_bytes=workspace_bytes(spec, options),
        graphs_bytes=graphs_bytes(spec, options.max_concurrent) if is_cuda else 0,
        context_bytes=context if is_cuda else 0,
        cache=cache_of(spec, options),
        options=options,
        loading_bytes=loading_bytes(spec, options.device),
        weight_format=weights.format,
        weight_description=weights.description,
    )


def cache_of(spec: ModelSpec, options: LedgerOptions) -> CacheSizes:
    """Return the caches of ``spec`` with the blocks and sequences of ``options``."""
    return cache_sizes(
        model_groups(spec, options.kv),
        options.kv_blocks,
        block_tokens=options.block_tokens,
        max_concurrent=options.max_concurrent,
        max_step_tokens=options.max_step_tokens,
        max_context=options.max_context,
    )


def workspace_bytes(spec: ModelSpec, options: LedgerOptions) -> int:
    """Count the scratch memory of the largest step."""
    if options.device == "cpu":
        return cpu_bytes(spec, options.step)
    return sum(buffer.size_bytes for buffer in gpu_buffers(spec, step_of(spec, options)))


def step_of(spec: ModelSpec, options: LedgerOptions) -> StepSizes:
    """Return the largest step on a GPU, with all that follows from the formats of the weights."""
    columns = code_columns(spec, options.quantization, options.formats)
    is_quantized = weight_bytes(spec, options.quantization, "cuda", options.formats).scales > 0
    min_batch = MIN_EQUAL_QUANTIZED if options.deterministic and is_quantized else 1
    return replace(options.step, code_columns=columns, min_batch=min_batch)


def graphs_bytes(spec: ModelSpec, max_concurrent: int) -> int:
    """Estimate captured CUDA graphs: one per size of a decode step and kind of sampling."""
    kernels = len(spec.layers) * GRAPH_KERNELS_A_LAYER + GRAPH_KERNELS_BESIDE
    return len(GRAPH_KINDS) * len(buckets(max_concurrent)) * kernels * GRAPH_NODE_BYTES
