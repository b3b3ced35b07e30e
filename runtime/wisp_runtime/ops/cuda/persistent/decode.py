"""The persistent decode kernel, ``persistent_decode.cu``, for one model on one GPU.

Every block of its grid waits for every other, so all must run at once: where the driver's occupancy query
allows fewer, steps take the general path. A timeout leaves its reason in :attr:`hang_report`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp
import numpy as np

from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.kv_formats.plain import BF16
from wisp_plan.memory.buffers.persistent import MAX_BLOCKS, exchanged
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Array, Batch, StepKind
from wisp_runtime.errors import KernelsMissing
from wisp_runtime.ops.cuda.device.arrays import BF16 as BF16_TYPE
from wisp_runtime.ops.cuda.device.arrays import to_host, zeros
from wisp_runtime.ops.cuda.device.checks import require, require_true
from wisp_runtime.ops.cuda.device.driver import FAULT_REPORTERS
from wisp_runtime.ops.cuda.device.gpu import Gpu, tensor_map_2d
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.persistent.arguments import (
    AT_GRID_BARRIER,
    CLUSTER,
    MAX_MARKS,
    SHARED_BYTES,
    THREADS,
    WAIT_REASONS,
    WARPGROUPS,
    Arguments,
    WindowedArguments,
    arguments_type,
    cluster_reciprocal,
    model_arguments,
)
from wisp_runtime.ops.cuda.persistent.context_limit import max_context_tokens
from wisp_runtime.ops.cuda.persistent.model import (
    KV_FORMATS,
    NEVER_TIMED,
    faster_up_to,
    kernel_model,
    max_sequences,
    parallel_splits,
    unsupported_reason,
    variant_widths,
)
from wisp_runtime.ops.cuda.persistent.weights import device_table, expert_strides, weight_format_of
from wisp_runtime.ops.protocol.attention import KvEncoding, RopeTable
from wisp_runtime.ops.protocol.weights.storage import NamedWeights

_OP = "persistent_decode"
_TILE_TOKENS = 16
_MIN_BLOCKS = 64
_PHASES = "QKV or attention", "output", "gate and up", "down"  # of a layer, each after the grid's barrier
TIMEOUT_CLOCKS = 4_000_000_000
"""How long the warp of a block that notices a hang waits: about two seconds; a step takes milliseconds."""


class PersistentDecode:
    """Run the decode steps of one model.

    Args:
        device: the GPU.
        spec: the model.
        weights: its weights on the device.
        rope: cosines and sines of every position.
        max_running: limit of sequences in a step; the kernel's own is 64, of experts 32.
        encodings: encoding of keys and values of each layer that attends, of one format.
        batch_invariant: whether a row's bits are the same in steps of all sizes.
        must_be_timed: whether to refuse a kernel that was never timed beside the general path.

    Attributes:
        max_sequences: limit of sequences in a step.
        faster_up_to: sequences of a step up to which it is faster than the general path; 0: never timed, or
            slower.
        max_context_tokens: limit of their tokens together; above it the general path is faster.
        sampled: returns the tokens of the step before; see :class:`.embedding.Embedding`.
        hang_report: pinned memory in which a wait that timed out leaves its reason.

    Raises:
        KernelsMissing: this model cannot run so, or the GPU does not run enough blocks.
        KernelNotCompiled: it can, and its kernel is not compiled.
    """

    def __init__(
        self,
        device: Gpu,
        spec: ModelSpec,
        weights: NamedWeights,
        rope: RopeTable,
        max_running: int,
        encodings: Sequence[KvEncoding],
        *,
        batch_invariant: bool = False,
        must_be_timed: bool = False,
    ) -> None:
        self.sampled: Callable[[], Array | None] = lambda: None
        self._device, self._spec, self._weights, self._rope = device, spec, weights, rope
        self._batch_invariant = batch_invariant
        self._require_supported(device.sm_count // CLUSTER * CLUSTER)
        self.max_sequences = min(max_running, max_sequences(spec))
        model, held = kernel_model(spec), weight_format_of(weights, spec)
        self.faster_up_to = faster_up_to(held, spec)
        if must_be_timed and not self.faster_up_to:
            raise KernelsMissing(NEVER_TIMED)
        self._widths = variant_widths(held, self.max_sequences, batch_invariant=batch_invariant)
        self._kv_format = _kv_format(encodings)
        formats = held if self._kv_format is BF16 else f"{held}/{self._kv_format.name}"
        self._kernels = {
            width: device.kernels.get_template(_OP, model, f"{_OP}_n{width}", formats)
            for width in self._widths
        }
        self.blocks = CLUSTER * min(map(_clusters, self._kernels.values()))
        self.blocks = min(self.blocks, MAX_BLOCKS, device.sm_count // CLUSTER * CLUSTER)
        self._require_supported(self.blocks)
        self.max_context_tokens = max_context_tokens(spec, held, self._kv_format)
        self._layers = device_table(weights, spec, encodings)
        self.hang_report = cp.cuda.alloc_pinned_memory(16)
        self._hang_report_host = np.frombuffer(self.hang_report, np.int32, 4)
        self._hang_report_host[:] = 0
        self._arguments = self._shared_arguments()
        FAULT_REPORTERS.append(self.describe_hang)
        self._trace: Array | None = None
        self._counts: Array | None = None
        self._cache_maps: tuple[Any, list[Any]] | None = None

    def _require_supported(self, blocks: int) -> None:
        """Refuse a model that cannot have the kernel, on a GPU that runs ``blocks`` thread blocks at once."""
        refusal = unsupported_reason(self._spec, blocks, batch_invariant=self._batch_invariant)
        if blocks < _MIN_BLOCKS:
            refusal = f"the GPU runs {blocks} of its thread blocks at once, under {_MIN_BLOCKS}"
        if refusal:
            raise KernelsMissing(f"no persistent decode kernel: {refusal}.")

    def takes(self, batch: Batch) -> bool:
        """Return whether ``batch`` is a decode step that this kernel runs."""
        rows = len(batch.tokens)
        tokens = sum(batch.context_lengths_host)
        fits = rows <= self.max_sequences and tokens <= self.max_context_tokens
        return batch.kind is StepKind.DECODE and fits

    def __call__(
        self,
        batch: Batch,
        groups: Sequence[tuple[Array, ...]],
        states: tuple[Array, ...] = (),
        layers: int | None = None,
    ) -> Array:
        """Compute one token of each sequence: K and V go to the cache, ``[B, V]`` float32 logits come back.

        Args:
            batch: B sequences of one token each.
            groups: keys and values of the layers that attend, ``[L, P, Hkv, Tb, Dh]``, of a row's bytes if
                quantized; where only some see all tokens, these are the second group.
            states: recurrent states and inputs of the convolutions of Gated DeltaNet, ``[slots, L, …]``.
            layers: number of the first layers that run; None: all.
        """
        rows, spec, arguments, sampled = len(batch.tokens), self._spec, self._arguments, self.sampled()
        width = next(width for width in self._widths if width >= rows)
        (keys, values), *full = groups
        _, blocks, _, block_tokens, _ = keys.shape
        require_true(block_tokens % 16 == 0, f"{_OP}: KV blocks of {block_tokens} tokens, not 16, 32, …")
        logits = self._device.workspace.array("logits", (rows, spec.vocab), np.float32)
        arguments.logits, arguments.tokens = logits.data.ptr, batch.tokens.data.ptr
        arguments.sampled = None if sampled is None else sampled.data.ptr
        arguments.positions, arguments.contexts = batch.positions.data.ptr, batch.context_lengths.data.ptr
        arguments.tables, arguments.slots = batch.block_tables.data.ptr, batch.slots.data.ptr
        arguments.keys, arguments.values = keys.data.ptr, values.data.ptr
        for of_full, other in zip(full, batch.other_groups, strict=True):
            self._point_to_full(of_full, other)
        if states:
            assert batch.state_slots is not None, "sequences have states, and slots for them"
            arguments.states, arguments.conv_inputs = (array.data.ptr for array in states)
            arguments.state_slots = batch.state_slots.data.ptr
        arguments.trace = None if self._trace is None else self._trace.data.ptr
        arguments.layer_count = len(spec.layers) if layers is None else layers
        arguments.sequences = rows
        arguments.sampled_rows = 0 if sampled is None else len(sampled)
        arguments.table_width, arguments.kv_blocks = batch.block_tables.shape[1], blocks
        arguments.block_tokens = block_tokens
        arguments.parallel_splits = 1
        if not self._batch_invariant:
            arguments.parallel_splits = parallel_splits(rows, keys.shape[2], self.blocks)
        maps = self._cached(groups)
        self._kernels[width].launch(
            (self.blocks,), THREADS, *maps, arguments, shared_bytes=SHARED_BYTES, cluster=CLUSTER
        )
        return logits

    def _point_to_full(self, group: tuple[Array, ...], batch: Batch) -> None:
        """Set the arguments of layers that see all tokens; ``batch``: the step in their tables."""
        arguments = self._arguments
        assert isinstance(arguments, WindowedArguments), "layers see equally many tokens"
        keys, values = group
        arguments.full_keys, arguments.full_values = keys.data.ptr, values.data.ptr
        arguments.full_tables, arguments.full_slots = batch.block_tables.data.ptr, batch.slots.data.ptr
        arguments.full_table_width, arguments.full_kv_blocks = batch.block_tables.shape[1], keys.shape[1]

    def count_experts(self, counts: Array) -> None:
        """See :meth:`.protocol.persistent.PersistentKernel.count_experts`."""
        (mixture,) = self._spec.ffns(MoeSpec)
        shape = len(self._spec.layers), 2, mixture.router.experts
        require(_OP, "the experts' counters", counts, shape, np.dtype(np.int64))
        self._counts, self._arguments.expert_counts = counts, counts.data.ptr

    def traced(self, run: Callable[[], object]) -> Array:
        """Return the clocks that blocks leave during the step that ``run`` launches (no graph's).

        Returns:
            ``[blocks, 2048]`` int64 of the host; :mod:`wisp_runtime.bench.profile.step_clocks` reads them.
        """
        self._trace = zeros((self.blocks, MAX_MARKS), np.int64)
        try:
            run()
            return to_host(self._trace)
        finally:
            self._trace = None

    def describe_hang(self) -> str | None:
        """Describe the wait that timed out; None if none did."""
        reason, block, phase, seen = (int(number) for number in self._hang_report_host)
        if not reason:
            return None
        layer, name = divmod(phase - 1, len(_PHASES))
        is_head = layer >= self._arguments.layer_count
        where = "the head" if is_head else f"layer {layer}, {_PHASES[name]}"
        waited = f"block {block} of a decode step waited {WAIT_REASONS[reason].format(where=where)}"
        if reason != AT_GRID_BARRIER:
            return waited
        expected = WARPGROUPS * self.blocks
        return f"{waited}, where {seen - (phase - 1) * expected} of {expected} warpgroups had arrived"

    def _shared_arguments(self) -> Arguments:
        """Return the arguments that all steps share; allocate the buffers that blocks exchange."""
        workspace, buffers = self._device.workspace, exchanged(self._spec, self._widths[-1])
        made = {buffer.name.removeprefix("step."): workspace.view(buffer) for buffer in buffers}
        self._exchanged = made  # kept: another model's kernel may replace them in the workspace
        weights, rope = self._weights, self._rope
        embeddings = weights["embeddings.weight"].storage
        fixed = {
            "layers": self._layers,
            "embeddings": embeddings,
            "head": embeddings if self._spec.ties_embeddings else weights["head.weight"].storage,
            "final_norm": weights["norm.weight"],
            "cosines": rope.cosines,
            "sines": rope.sines,
        }
        return arguments_type(self._spec)(
            **{name: array.data.ptr for name, array in (made | fixed).items()},
            hang_report=self.hang_report.ptr,
            timeout_clocks=TIMEOUT_CLOCKS,
            cluster_reciprocal=cluster_reciprocal(self.blocks),
            known_positions=len(rope.cosines),
            **expert_strides(weights, self._spec),
            **model_arguments(self._spec),
        )

    def _cached(self, groups: Sequence[tuple[Array, ...]]) -> list[Any]:
        known, arrays = self._cache_maps, [array for group in groups for array in group]
        key = [(array.data.ptr, array.shape) for array in arrays]
        if known is None or known[0] != key:
            maps = [_tensor_map(cache, self._kv_format) for cache in arrays]
            known = self._cache_maps = (key, maps)
        return known[1]


def _kv_format(encodings: Sequence[KvEncoding]) -> KvFormat:
    """Return the format of all layers' keys and values.

    Raises:
        KernelsMissing: the kernel does not read it.
    """
    (kv_format,) = {encoding.format for encoding in encodings}
    if kv_format not in KV_FORMATS:
        names = " and ".join(known.name for known in KV_FORMATS)
        raise KernelsMissing(f"keys and values are {kv_format.name}: the persistent kernel reads {names}")
    return kv_format


def _tensor_map(cache: Array, kv_format: KvFormat) -> Any:
    """Describe keys or values: tiles of 16 tokens in boxes of 64 two-byte elements.

    Of bf16 a box has a row for each token; of bytes its rows are the tile's, 128 bytes each.
    """
    if kv_format is BF16:
        return tensor_map_2d(cache.reshape(-1, cache.shape[-1]), _TILE_TOKENS, 64)
    return tensor_map_2d(cache.reshape(-1, 128).view(BF16_TYPE), _TILE_TOKENS * cache.shape[-1] // 128, 64)


def _clusters(kernel: Kernel) -> int:
    return kernel.clusters_at_once(THREADS, shared_bytes=SHARED_BYTES, cluster=CLUSTER)
