"""The ops on an NVIDIA GPU, put together: which kernel an op launches, and which buffer takes its result.

The names of buffers are chosen here, for all: two results that live at once have different names.
:mod:`wisp_plan.memory.buffers` declares each; nothing else is allocated once the workspace is sealed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wisp_plan.memory.buffers.gpu import op_buffers
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch, Sampled, SamplingBatch, StepKind
from wisp_runtime.errors import ConfigError, KernelsMissing
from wisp_runtime.ops.cuda.attention.decode_attention import DecodeAttention
from wisp_runtime.ops.cuda.attention.prefill_attention import PrefillAttention
from wisp_runtime.ops.cuda.attention.rope import Rope
from wisp_runtime.ops.cuda.device.arena import Arenas
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device, to_host, to_host_float32
from wisp_runtime.ops.cuda.device.device import Device, open_device
from wisp_runtime.ops.cuda.device.driver import translate
from wisp_runtime.ops.cuda.elementwise.embedding import Embedding
from wisp_runtime.ops.cuda.elementwise.norms import Norms
from wisp_runtime.ops.cuda.elementwise.rows import GatherRows
from wisp_runtime.ops.cuda.gemm.linear import Linear
from wisp_runtime.ops.cuda.gemm.planner import data_parallel_plan
from wisp_runtime.ops.cuda.gemm.portable_linear import PortableLinear
from wisp_runtime.ops.cuda.gemm.tiling import ROW_TILE
from wisp_runtime.ops.cuda.persistent.decode import PersistentDecode
from wisp_runtime.ops.cuda.sampling.sampler import Sampler
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.protocol.attention import HeadLayout, RopeTable
from wisp_runtime.ops.protocol.persistent import PersistentKernel
from wisp_runtime.ops.protocol.row_permutation import interleaved_head_size
from wisp_runtime.ops.protocol.weights import NamedWeights

_NEEDED = (
    *("pack", "embedding", "rmsnorm", "add_rmsnorm", "linear", "linear_swiglu", "linear_logits"),
    *("rope_write_kv", "decode_attention", "prefill_attention", "gather_rows"),
    *("sample_argmax", "sample_histogram", "sample_token", "sample_logprobs"),
)
"""The ops that every model needs."""
_NEEDED_WHERE_PRODUCTS_ROTATE = ("linear_rotary",)

_MOST_ROTATED = 768
"""Tokens of a product that rotates its own rows: of more, fetching angles delays it longer than a launch."""


@dataclass(frozen=True, slots=True)
class _Kinds:
    """What a batch is made of: sequences with one query, sequences with several."""

    batch: Batch
    decodes: bool
    prefills: bool


class CudaOps(Arenas):
    """CUDA implementation of ``Ops``. Results are overwritten by the next op of the same kind.

    Args:
        device: the open GPU.
        linear: its matrix products; None takes Hopper's there, else the portable ones.

    Attributes:
        device_state: the open GPU.
        sampler: draws tokens; None until :meth:`make_sampler`.
    """

    device = "cuda"

    def __init__(self, device: Device, linear: Linear | None = None) -> None:
        own = Linear if device.arch.startswith("sm_90") else PortableLinear
        self._linear = linear or own(device)
        super().__init__(device, fuses_rope=self._linear.fuses_rope)
        self.device_state, self.kernels = device, device.kernels.name
        self.sampler: Sampler | None = None
        self._embedding, self._norms, self._rope = Embedding(device), Norms(device), Rope(device)
        self._decode_attention, self._prefill_attention = DecodeAttention(device), PrefillAttention(device)
        self._gather_rows = GatherRows(device)
        self._known: _Kinds | None = None
        self._most_rotated = _MOST_ROTATED

    @classmethod
    def open(cls) -> CudaOps:
        """Open the first GPU that this process sees.

        Raises:
            GpuUnavailable, GpuOutOfMemory, KernelsMissing: as :func:`.device.open_device`; also where one
                kernel of the set is missing, which else is found out once all weights have been read.
        """
        device = open_device()
        ops = cls(device)
        device.kernels.require(*_NEEDED, *(_NEEDED_WHERE_PRODUCTS_ROTATE if ops._linear.fuses_rope else ()))
        return ops

    def make_sampler(self, vocab: int, max_rows: int) -> Sampler:
        """Make the sampler of a model; its tokens are what :meth:`embedding` looks up for negative ones."""
        self.sampler = Sampler(self.device_state, vocab, max_rows)
        return self.sampler

    def reserve(self, spec: ModelSpec, step: StepSizes) -> None:
        """Allocate the buffers of every op, and make the sampler."""
        step = replace(step, sm_count=self.device_state.sms)
        self.make_sampler(spec.vocab, step.max_sequences)
        self._linear.reserve(step.max_tokens)
        self.device_state.workspace.reserve(op_buffers(spec, step, self._prefill_attention.tiles))

    def set_batch_invariant(self) -> None:
        """Cut no product and no attention along what it sums over; see ``Ops``.

        Raises:
            ConfigError: the GPU is no Hopper.
        """
        if not self._linear.fuses_rope:
            raise ConfigError(
                "--deterministic is for Hopper GPUs (H100, H200): other kernels split their sums."
            )
        self._linear = Linear(self.device_state, data_parallel_plan)
        self._prefill_attention.set_batch_invariant()
        self._most_rotated = 0

    def from_host(self, array: Array) -> Array:
        """Copy a host array to the GPU."""
        with translate("copying an array to the GPU"):
            return to_device(array)

    def to_host(self, array: Array) -> Array:
        """Copy an array to the host as float32; waits for the GPU."""
        return to_host_float32(array)

    def embedding(self, tokens: Array, table: PackedMatrix) -> Array:
        """See :class:`.embedding.Embedding`."""
        drawn = None if self.sampler is None else self.sampler.drawn
        return self._embedding(tokens, table, drawn, out_name="residual")

    def rmsnorm(self, x: Array, weight: Array, *, eps: float) -> Array:
        """See :meth:`.norms.Norms.rmsnorm`."""
        return self._norms.rmsnorm(x, weight, eps=eps, out_name="normed")

    def add_rmsnorm(
        self, x: Array, residual: Array, weight: Array, *, eps: float, rows: Array | None = None
    ) -> Array:
        """See :meth:`.norms.Norms.add_rmsnorm`."""
        return self._norms.add_rmsnorm(x, residual, weight, eps=eps, rows=rows, out_name="normed")

    def gather_rows(self, x: Array, rows: Array) -> Array:
        """See :class:`.rows.GatherRows`."""
        return self._gather_rows(x, rows, out_name="rows")

    def linear(self, x: Array, weight: PackedMatrix, bias: Array | None = None) -> Array:
        """See :meth:`.linear.Linear.__call__`."""
        return self._linear(x, weight, bias, out_name="output")

    def swiglu(self, x: Array, weight: PackedMatrix, bias: Array | None = None) -> Array:
        """See :meth:`.linear.Linear.swiglu`."""
        return self._linear.swiglu(x, weight, bias, out_name="swiglu")

    def logits(self, x: Array, weight: PackedMatrix) -> Array:
        """See :meth:`.linear.Linear.logits`."""
        return self._linear.logits(x, weight, out_name="logits")

    def project_qkv(
        self,
        x: Array,
        weight: PackedMatrix,
        bias: Array | None,
        heads: HeadLayout,
        rotary: RopeTable,
        batch: Batch,
        keys: Array,
        values: Array,
    ) -> Array:
        """Launch a product that rotates its own rows; of many tokens a plain one and :class:`.rope.Rope`."""
        sizes = heads.queries, heads.keys, heads.size
        angles = rotary.cosines, rotary.sines
        where = batch.positions, batch.slots, keys, values
        if len(x) <= self._most_rotated and self._rotates_itself(weight, heads, rotary):
            return self._linear.rotary(x, weight, bias, sizes, *angles, *where, out_name="qkv")
        qkv = self._linear(x, weight, bias, out_name="qkv")
        norms, by_heads = (heads.q_norm, heads.k_norm), interleaved_head_size(weight.permutation) > 0
        return self._rope(qkv, sizes, *norms, heads.eps, *angles, *where, by_heads=by_heads)

    def _rotates_itself(self, weight: PackedMatrix, heads: HeadLayout, rotary: RopeTable) -> bool:
        if interleaved_head_size(weight.permutation):
            return True
        is_tile = heads.size == ROW_TILE and 2 * rotary.cosines.shape[1] == ROW_TILE
        return self._linear.fuses_rope and is_tile and heads.q_norm is None and heads.k_norm is None

    def paged_attention(
        self, q: Array, keys: Array, values: Array, batch: Batch, *, scale: float, window: int | None
    ) -> Array:
        """Launch the kernel for sequences with one query, that for sequences with several, or both."""
        kinds = self._kinds(batch)
        tokens, heads, size = q.shape
        out = self.device_state.workspace.array("attention", (tokens, heads * size), BF16)
        if kinds.prefills:
            self._prefill_attention(q, keys, values, batch, scale=scale, window=window, out=out)
        if kinds.decodes:
            room = batch.block_tables.shape[1] * keys.shape[2]
            self._decode_attention(
                q, keys, values, batch, scale=scale, window=window, max_context=room, out=out
            )
        return out

    def persistent_kernel(
        self, spec: ModelSpec, weights: NamedWeights, rotation: RopeTable, max_sequences: int
    ) -> PersistentKernel | str:
        """See :class:`.persistent.decode.PersistentDecode`; the reason where that is refused."""
        device = self.device_state
        if "MIG" in device.name:
            return "the GPU is a part of one (MIG), where not all thread blocks may run at once"
        try:
            step = PersistentDecode(device, spec, weights, rotation, max_sequences)
        except KernelsMissing as error:
            return error.message
        step.sampled = lambda: None if self.sampler is None else self.sampler.drawn
        return step

    def _kinds(self, batch: Batch) -> _Kinds:
        known = self._known
        if known is None or known.batch is not batch:
            starts = np.asarray(batch.query_starts_host)
            counts = starts[1:] - starts[:-1]
            kinds = (
                (False, True)
                if batch.kind is StepKind.PREFILL
                else (bool((counts == 1).any()), bool((counts > 1).any()))
            )
            known = self._known = _Kinds(batch, *kinds)
        return known

    def sample(self, logits: Array, sampling: SamplingBatch) -> Sampled:
        """See :class:`.sampling.Sampler`; waits for the GPU. The engine's steps use the sampler itself."""
        rows, vocab = logits.shape
        sampler = self.sampler
        if sampler is None or sampler.vocab != vocab or sampler.max_rows < rows:
            sampler = self.make_sampler(vocab, rows)
        host = np.zeros(sampler.parameter_bytes, np.uint8)
        sampler.fill(sampler.host_view(host), sampling)
        found = sampler.launch(logits, rows, to_device(host), logprobs=sampling.logprobs)
        arrays = found.tokens, found.logprobs, found.top_ids, found.top_logprobs
        return Sampled(*(None if one is None else to_host(one) for one in arrays))
