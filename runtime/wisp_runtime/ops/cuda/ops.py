"""Ops on an NVIDIA GPU: the kernel that each op launches, and the buffer that takes its result.

Two results that live at once have buffers of different names.
:mod:`wisp_plan.memory.buffers` declares each; nothing else is allocated once the workspace is sealed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wisp_plan.kv_formats.layers import KV_FORMATS, KvLayers
from wisp_plan.memory.buffers.gpu import max_upload_bytes, op_buffers
from wisp_plan.memory.buffers.kv_cache import scratch_blocks
from wisp_plan.memory.step import StepSizes
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array, Batch, Sampled, SamplingBatch
from wisp_runtime.errors import ConfigError, KernelNotCompiled, KernelsMissing
from wisp_runtime.ops.cuda.attention.batch_mix import BatchMix
from wisp_runtime.ops.cuda.attention.decode_attention import DecodeAttention, op_of
from wisp_runtime.ops.cuda.attention.prefill_attention import PrefillAttention
from wisp_runtime.ops.cuda.attention.projection import MAX_FUSED_ROPE_TOKENS, HeadProjection
from wisp_runtime.ops.cuda.attention.quantized_prefill import QuantizedPrefill
from wisp_runtime.ops.cuda.attention.rope import Rope
from wisp_runtime.ops.cuda.device.arena import Arenas
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device, to_host, to_host_float32
from wisp_runtime.ops.cuda.device.driver import translate
from wisp_runtime.ops.cuda.device.gpu import Gpu, open_gpu
from wisp_runtime.ops.cuda.elementwise.embedding import Embedding
from wisp_runtime.ops.cuda.elementwise.gate import GateHeads
from wisp_runtime.ops.cuda.elementwise.norms import Norms
from wisp_runtime.ops.cuda.elementwise.row_norms import RowNorms
from wisp_runtime.ops.cuda.elementwise.rows import GatherRows
from wisp_runtime.ops.cuda.gemm.linear import Linear, Matrix
from wisp_runtime.ops.cuda.gemm.planner import data_parallel_plan
from wisp_runtime.ops.cuda.gemm.portable_linear import PortableLinear
from wisp_runtime.ops.cuda.gemm.quantized_tiling import unsplit_quantized
from wisp_runtime.ops.cuda.kv_cache.quantized_kv import QuantizedKv
from wisp_runtime.ops.cuda.moe.ops import CudaMoe
from wisp_runtime.ops.cuda.persistent.decode import PersistentDecode
from wisp_runtime.ops.cuda.recurrent.delta_net import DeltaNetMixers
from wisp_runtime.ops.cuda.recurrent.mamba import MambaMixers
from wisp_runtime.ops.cuda.sampling.sampler import Sampler
from wisp_runtime.ops.cuda.scaling import Scaling
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix
from wisp_runtime.ops.protocol.attention import Encodings, KvCache, RopeTable
from wisp_runtime.ops.protocol.persistent import PersistentKernel
from wisp_runtime.ops.protocol.weights.storage import NamedWeights

_NEEDED = (
    *("pack", "embedding", "rmsnorm", "add_rmsnorm", "linear", "linear_swiglu", "linear_logits"),
    *("rope_write_kv", "decode_attention", "prefill_attention", "gather_rows", "gate_heads"),
    *("activate", "scale", "add_scaled"),
    *("sample_argmax", "sample_histogram", "sample_token", "sample_logprobs"),
)
"""Ops that every model needs."""
_NEEDED_TO_FUSE_ROPE = ("linear_rotary",)
NEEDED_BY_QUANTIZED_KV = (
    *("quantize_kv", "dequantize_kv", "rotate_heads"),
    *dict.fromkeys(op_of(kv_format) for kv_format in KV_FORMATS.values() if kv_format.is_quantized),
)


class CudaOps(Arenas, RowNorms, HeadProjection, DeltaNetMixers, MambaMixers, Scaling, CudaMoe):
    """CUDA implementation of ``Ops``. Results are overwritten by the next op of the same kind.

    Args:
        gpu: the open GPU.
        linear: its GEMMs; None takes Hopper's there, else the portable ones.

    Attributes:
        gpu: the open GPU.
        sampler: sampler of the model; None until :meth:`make_sampler`.
    """

    device = "cuda"

    def __init__(self, gpu: Gpu, linear: Linear | None = None) -> None:
        own = Linear if gpu.arch.startswith("sm_90") else PortableLinear
        self._linear = linear or own(gpu)
        super().__init__(gpu, fuses_rope=self._linear.fuses_rope)
        self.gpu, self.kernels = gpu, gpu.kernels.name
        self.sampler: Sampler | None = None
        self._embedding, self._norms, self._rope = Embedding(gpu), Norms(gpu), Rope(gpu)
        self._decode_attention, self._prefill_attention = DecodeAttention(gpu), PrefillAttention(gpu)
        self._kv = QuantizedKv(gpu)
        self._quantized_prefill = QuantizedPrefill(gpu, self._prefill_attention, self._kv)
        self._gather_rows, self._gate_heads = GatherRows(gpu), GateHeads(gpu)
        self._mix: BatchMix | None = None
        self._max_fused_rope_tokens = MAX_FUSED_ROPE_TOKENS
        self._is_batch_invariant = False

    @classmethod
    def open(cls) -> CudaOps:
        """Open the first GPU that this process sees.

        Raises:
            GpuUnavailable, GpuOutOfMemory, KernelsMissing: see :func:`.gpu.open_gpu`; also where one kernel
                of the set is missing, before any weight is read.
        """
        gpu = open_gpu()
        ops = cls(gpu)
        gpu.kernels.require(*_NEEDED, *(_NEEDED_TO_FUSE_ROPE if ops._linear.fuses_rope else ()))
        return ops

    def make_sampler(self, vocab: int, max_rows: int) -> Sampler:
        """Make the sampler of a model; :meth:`embedding` looks up its tokens for negative ones."""
        self.sampler = Sampler(self.gpu, vocab, max_rows)
        return self.sampler

    def require_kv(self, kv: KvLayers) -> None:
        """Look up the kernels of a quantized cache, before any weight is read.

        Raises:
            KernelsMissing: one of them is missing, or is not compiled.
        """
        if kv.inner.is_quantized:
            self.gpu.kernels.require(*NEEDED_BY_QUANTIZED_KV)

    def reserve(self, spec: ModelSpec, step: StepSizes) -> None:
        """Allocate the buffers of every op, and make the sampler."""
        step = replace(step, sm_count=self.gpu.sm_count, code_columns=self.code_columns)
        self.make_sampler(spec.vocab, step.max_sequences)
        self.load_delta_net(spec)
        self.load_mamba(spec)
        self._linear.reserve(step.max_tokens, self.code_columns)
        buffers = op_buffers(spec, step, self._prefill_attention.tiles)
        self.gpu.workspace.reserve(buffers)
        self.gpu.uploads.reserve(max_upload_bytes(buffers))
        if step.kv.inner.is_quantized:
            self._kv.reserve(scratch_blocks(step), step.block_tokens)

    def set_batch_invariant(self) -> None:
        """Split no GEMM along K, no prompt along KV, and a sequence that decodes by its length; see ``Ops``.

        Raises:
            ConfigError: the GPU is no Hopper.
        """
        if not self._linear.fuses_rope:
            raise ConfigError(
                "--deterministic is for Hopper GPUs (H100, H200): other kernels split their sums."
            )
        self._linear = Linear(
            self.gpu, data_parallel_plan, quantized_planner=unsplit_quantized, rounds_tokens=False
        )
        self._prefill_attention.set_batch_invariant()
        self._decode_attention.set_batch_invariant()
        self._is_batch_invariant = True
        self._max_fused_rope_tokens = 0

    def from_host(self, array: Array) -> Array:
        """Copy a host array to the GPU."""
        with translate("copying an array to the GPU"):
            return to_device(array)

    def to_host(self, array: Array) -> Array:
        """Copy an array to the host as float32; waits for the GPU."""
        return to_host_float32(array)

    def embedding(self, tokens: Array, table: PackedMatrix) -> Array:
        """See :class:`.embedding.Embedding`."""
        sampled = None if self.sampler is None else self.sampler.sampled_tokens
        return self._embedding(tokens, table, sampled, out_name="residual")

    def gather_rows(self, x: Array, rows: Array) -> Array:
        """See :class:`.rows.GatherRows`."""
        return self._gather_rows(x, rows, out_name="rows")

    def linear(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:
        """See :meth:`.linear.Linear.__call__`."""
        return self._linear(x, weight, bias, out_name="output")

    def swiglu(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:
        """See :meth:`.linear.Linear.swiglu`."""
        return self._linear.swiglu(x, weight, bias, out_name="swiglu")

    def logits(self, x: Array, weight: Matrix) -> Array:
        """See :meth:`.linear.Linear.logits`."""
        return self._linear.logits(x, weight, out_name="logits")

    def paged_attention(
        self,
        q: Array,
        cache: KvCache,
        batch: Batch,
        *,
        scale: float,
        window: int | None,
        sinks: Array | None = None,
    ) -> Array:
        """Launch the kernel for sequences with one query, that for sequences with several, or both."""
        keys, values, encoding = cache
        mix, kv_format = self._mix_of(batch), encoding.format
        tokens, heads, size = q.shape
        out = self.gpu.workspace.array("attention", (tokens, heads * size), BF16)
        options = {"scale": scale, "window": window, "out": out, "sinks": sinks}
        if mix.has_prefills and kv_format.is_quantized:
            self._quantized_prefill(q, keys, values, batch, **options, encoding=encoding)
        elif mix.has_prefills:
            self._prefill_attention(q, keys, values, batch, **options)
        if mix.has_decodes:
            capacity = batch.block_tables.shape[1] * keys.shape[2]
            if kv_format.is_rotated:
                self._kv.rotate(q, heads, size, batch)
            of_decodes = options | {"max_context": capacity, "encoding": encoding}
            self._decode_attention(q, keys, values, batch, **of_decodes)
            if kv_format.is_rotated:
                self._kv.rotate(out, heads, size, batch)
        return out

    def persistent_kernel(
        self,
        spec: ModelSpec,
        weights: NamedWeights,
        rope: RopeTable,
        max_sequences: int,
        kv: Encodings,
        *,
        must_be_timed: bool = False,
    ) -> PersistentKernel | str:
        """See :class:`.persistent.decode.PersistentDecode`; the reason where the model can have none."""
        if "MIG" in self.gpu.name:
            return "the GPU is a part of one (MIG), where not all thread blocks may run at once"
        try:
            made = self.gpu, spec, weights, rope, max_sequences, kv
            batch_invariant = self._is_batch_invariant
            kernel = PersistentDecode(*made, batch_invariant=batch_invariant, must_be_timed=must_be_timed)
        except KernelNotCompiled:
            raise
        except KernelsMissing as error:
            return error.message
        kernel.sampled = lambda: None if self.sampler is None else self.sampler.sampled_tokens
        return kernel

    def _mix_of(self, batch: Batch) -> BatchMix:
        if self._mix is None or not self._mix.is_of(batch):
            self._mix = BatchMix.of(batch)
        return self._mix

    def sample(self, logits: Array, sampling: SamplingBatch) -> Sampled:
        """See :class:`.sampling.Sampler`; waits for the GPU. The engine's steps use the sampler itself."""
        rows, vocab = logits.shape
        sampler = self.sampler
        if sampler is None or sampler.vocab != vocab or sampler.max_rows < rows:
            sampler = self.make_sampler(vocab, rows)
        host = np.zeros(sampler.parameter_bytes, np.uint8)
        sampler.fill(sampler.host_view(host), sampling)
        sampled = sampler.launch(logits, rows, to_device(host), logprobs=sampling.logprobs)
        arrays = sampled.tokens, sampled.logprobs, sampled.top_ids, sampled.top_logprobs
        return Sampled(*(None if array is None else to_host(array) for array in arrays))
