"""A model of random weights of a format, and its decode step: by the persistent kernel, and in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
from bf16_matrix import Bf16Matrix, from_bf16, from_f16, to_bf16
from cuda.bindings import driver as cu
from random_weights import check_packing, random_matrix
from step_reference import reference

from wisp_plan.memory.buffers.persistent import LAYER_WORDS, MAX_BLOCKS, exchanged
from wisp_plan.presets import shape_spec
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_runtime.bench.profile.step_clocks import read
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.driver import ok
from wisp_runtime.ops.cuda.device.gpu import open_gpu, tensor_map_2d
from wisp_runtime.ops.cuda.device.kernels import Kernel
from wisp_runtime.ops.cuda.persistent.arguments import (
    CLUSTER,
    MAX_MARKS,
    SHARED_BYTES,
    THREADS,
    WAIT_REASONS,
    WIDTHS,
    Arguments,
    cluster_reciprocal,
    model_arguments,
    require_repeated,
)
from wisp_runtime.ops.cuda.persistent.model import kernel_model, parallel_splits

_CONTEXT, _TOKENS = 512, 16
_TIMEOUT_CLOCKS = 1_000_000_000


class StepSubject:
    """Weights, cache and buffers of a model with heads of 128, RoPE-interleaved, without norms or biases.

    Args:
        shape: name of the model's shape.
        weight_format, head_format: formats of the layers' matrices, and of the head's.
        layers: number of layers; None: the shape's.
    """

    def __init__(
        self,
        shape: str,
        weight_format: str,
        head_format: str = "bf16",
        *,
        layers: int | None = None,
    ) -> None:
        self.spec = shape_spec(shape)
        self.attention, ffn, self.norms, *_ = require_repeated(self.spec)
        self.layers = layers or len(self.spec.layers)
        attention, hidden = self.attention, self.spec.hidden
        self.inner, self.context, self.device = ffn.inner, _CONTEXT, open_gpu(0)
        self._random = cp.random.RandomState(7)
        self._kept: list[Any] = []
        rows = attention.query_size + 2 * attention.kv_size
        shapes = {"qkv": (rows, hidden), "output": (hidden, attention.query_size)}
        shapes |= {"gate_up": (2 * self.inner, hidden), "down": (hidden, self.inner)}
        self.made = {name: self._matrix(weight_format, *size) for name, size in shapes.items()}
        vocab = -(-self.spec.vocab // 256) * 256
        self.embeddings = Bf16Matrix(vocab, hidden, self._random)
        self.head = self.embeddings if head_format == "bf16" else self._matrix(head_format, vocab, hidden)
        self.norm_weights = [self._norm() for _ in range(2 * self.layers + 1)]
        self._weight_bytes = sum(made.storage.nbytes for made in self.made.values()) * self.layers
        self._weight_bytes += self.spec.vocab * self.head.storage.nbytes // vocab
        self._table = self._layer_table()
        self._cache()
        self._formats = weight_format if head_format == "bf16" else f"{weight_format}+{head_format}"
        self.readers = [from_bf16 if name == "bf16" else from_f16 for name in (weight_format, head_format)]
        self._buffers()

    def _matrix(self, weight_format: str, out: int, into: int) -> Any:
        if weight_format == "bf16":
            return Bf16Matrix(out, into, self._random)
        packed = PACKED_FORMATS[weight_format]
        check_packing(packed)
        return random_matrix(packed, out, into, self._random)

    def _norm(self) -> Any:
        return to_bf16((1 + 0.1 * self._random.randn(self.spec.hidden)).astype(np.float32))

    def _layer_table(self) -> Any:
        """Return each layer's pointers; all have storage of their own, lest the L2 cache serve some."""
        table = np.zeros((self.layers, LAYER_WORDS), np.uint64)
        for layer in range(self.layers):
            for column, made in enumerate(self.made.values()):
                storage = made.storage if layer == 0 else made.storage.copy()
                self._kept.append(storage)
                table[layer, column] = storage.data.ptr
            table[layer, 8] = self.norm_weights[2 * layer].data.ptr
            table[layer, 9] = self.norm_weights[2 * layer + 1].data.ptr
        return cp.asarray(table)

    def _cache(self) -> None:
        size, attention = WIDTHS[-1], self.attention
        blocks = -(-_CONTEXT // _TOKENS)
        shape = (self.layers, size * blocks, attention.kv_heads, _TOKENS, attention.head_size)
        self.keys, self.values = (
            to_bf16(self._random.standard_normal(shape, dtype=np.float32)) for _ in range(2)
        )
        self.tables = self._random.permutation(size * blocks).reshape(size, blocks).astype(np.int32)
        self.tokens = self._random.randint(0, self.spec.vocab, size).astype(np.int32)
        self.positions = cp.full(size, _CONTEXT - 1, np.int32)
        self.contexts = cp.full(size, _CONTEXT, np.int32)
        self.slots = self.tables[:, -1].astype(np.int64) * _TOKENS + (_CONTEXT - 1) % _TOKENS
        pairs = np.arange(attention.head_size // 2) * 2 / attention.head_size
        angles = np.arange(_CONTEXT)[:, None] * attention.rope.theta**-pairs
        self.cosines, self.sines = (cp.asarray(f(angles).astype(np.float32)) for f in (np.cos, np.sin))

    def _buffers(self) -> None:
        types = {"bfloat16": np.uint16, "float32": np.float32, "uint32": np.uint32}
        self.buffers = {
            buffer.name.removeprefix("step."): cp.zeros(buffer.shape, types[buffer.dtype])
            for buffer in exchanged(self.spec, WIDTHS[-1])
        }
        self.logits = cp.zeros((WIDTHS[-1], self.spec.vocab), np.float32)
        self.marks = cp.zeros((MAX_BLOCKS, MAX_MARKS), np.int64)
        self.hang_report = cp.cuda.alloc_pinned_memory(16)
        self._hang_report_host = np.frombuffer(self.hang_report, np.int32, 4)
        self._hang_report_host[:] = 0
        self.maps = [
            tensor_map_2d(a.view(BF16).reshape(-1, a.shape[-1]), 16, 64) for a in (self.keys, self.values)
        ]

    def load(self, cubins: Path | None = None) -> None:
        """Load the kernels of FORMAT.cubin in a folder; None: the catalogue's."""
        cubin = cubins and cubins / f"{self._formats}.cubin"
        self.kernels = {width: self._kernel(f"persistent_decode_n{width}", cubin) for width in WIDTHS}
        clusters = [
            kernel.clusters_at_once(THREADS, shared_bytes=SHARED_BYTES, cluster=CLUSTER)
            for kernel in self.kernels.values()
        ]
        self.blocks = min(CLUSTER * min(clusters), self.device.sm_count // CLUSTER * CLUSTER)

    def _kernel(self, entry: str, cubin: Path | None) -> Kernel:
        if cubin is None:
            model = kernel_model(self.spec)
            return self.device.kernels.get_template("persistent_decode", model, entry, self._formats)
        module = ok(cu.cuModuleLoadData(cubin.read_bytes()), f"loading {cubin}")
        function = ok(cu.cuModuleGetFunction(module, entry.encode()), f"loading {entry}")
        return Kernel(entry, function, self.device.stream, can_overlap=True)

    def launch(self, size: int, layers: int | None = None, *, is_traced: bool = False) -> None:
        """Launch a step of ``size`` sequences."""
        arrays = self.buffers | {
            "layers": self._table,
            "embeddings": self.embeddings.storage,
            "head": self.head.storage,
            "final_norm": self.norm_weights[-1],
            **{name: getattr(self, name) for name in ("logits", "tokens", "positions", "contexts", "tables")},
            **{name: getattr(self, name) for name in ("slots", "cosines", "sines", "keys", "values")},
        }
        arguments = Arguments(
            **{name: array.data.ptr for name, array in arrays.items()},
            trace=self.marks.data.ptr if is_traced else None,
            hang_report=self.hang_report.ptr,
            timeout_clocks=_TIMEOUT_CLOCKS,
            cluster_reciprocal=cluster_reciprocal(self.blocks),
            layer_count=layers or self.layers,
            sequences=size,
            table_width=self.tables.shape[1],
            kv_blocks=self.keys.shape[1],
            block_tokens=_TOKENS,
            parallel_splits=parallel_splits(size, self.attention.kv_heads, self.blocks),
            known_positions=len(self.cosines),
            **model_arguments(self.spec),
        )
        width = next(width for width in WIDTHS if width >= size)
        self.kernels[width].launch(
            (self.blocks,), THREADS, *self.maps, arguments, shared_bytes=SHARED_BYTES, cluster=CLUSTER
        )

    def step(self, size: int, layers: int | None = None) -> Any:
        """Return the logits of a step, ``[64, vocab]``."""
        self.launch(size, layers)
        self.require_sound()
        return self.logits

    def require_sound(self) -> None:
        """Wait for the GPU; end the process with the reason of a hang."""
        try:
            cp.cuda.Device().synchronize()
        except cp.cuda.runtime.CUDARuntimeError as error:
            reason, block, phase, _ = self._hang_report_host.tolist()
            waited = WAIT_REASONS.get(reason, str(error)).format(where=f"phase {phase}")
            raise SystemExit(f"block {block} waited {waited}") from None

    def step_bytes(self, size: int) -> int:
        """Return the bytes that a step must read."""
        cache = 2 * self.layers * self.attention.kv_size * 2 * _CONTEXT
        return self._weight_bytes + size * cache

    def phases_us(self, size: int) -> dict[str, float]:
        """Return the mean time of each activity of a phase, all blocks and layers."""
        self.marks[:] = 0
        self.launch(size, is_traced=True)
        self.require_sound()
        times: dict[str, list[float]] = {}
        for each in read(self.marks[: self.blocks].get()):
            times.setdefault(f"{each.phase} {each.activity}", []).append(each.us)
        return {name: round(float(np.mean(all_us)), 2) for name, all_us in times.items()}

    def compare(self, size: int) -> dict[str, Any]:
        """Run one layer and compare each stage: the worst row's cosine, and the norms' ratio."""
        self.launch(size, 1)
        self.require_sound()
        width = next(width for width in WIDTHS if width >= size)
        layer, head = self.readers
        expected = reference(self, size)
        raw = self.buffers["pre_rope_qkv"].reshape(-1)[: width * self.made["qkv"].codes.shape[0]]
        gated_unit = 2**-3 if layer is from_f16 else 1
        stored = head(self.buffers["normed"][:size]) / from_bf16(self.norm_weights[-1])
        if from_f16 in self.readers:
            stored = _without_unit(stored, expected)
        got = {
            "qkv": raw.reshape(width, -1)[:size],
            "attended": layer(self.buffers["attended"][:size]),
            "gated": layer(self.buffers["gated"][:size]) / gated_unit,
            "added": stored - expected["embedding"],
            "logits": self.logits[:size],
        }
        pairs = {
            name: (array.astype(np.float64), expected[name].astype(np.float64)) for name, array in got.items()
        }
        norms = {name: [cp.linalg.norm(each, axis=1) for each in pair] for name, pair in pairs.items()}
        cosines = {
            name: float(((a * b).sum(1) / norms[name][0] / norms[name][1]).min())
            for name, (a, b) in pairs.items()
        }
        ratios = {name: float((a / b).max()) for name, (a, b) in norms.items()}
        return {
            "cosines": {name: round(value, 7) for name, value in cosines.items()},
            "norms": {name: round(value, 4) for name, value in ratios.items()},
        }


def _without_unit(stored: Any, expected: dict[str, Any]) -> Any:
    """Return rows of the residual, of two possible units by the one that fits better."""
    low, high = (stored / unit for unit in expected["units"])
    errors = [cp.linalg.norm(rows - expected["final"], axis=1, keepdims=True) for rows in (low, high)]
    return cp.where(errors[0] <= errors[1], low, high)
