"""A small model whose decode steps run on the emulated GPU, and by the general path on the CPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
from decode_batch import decode_batch
from emulated_kernel import KERNELS, Emulated, TensorMap, tensor_map
from spec_changes import attention_of, changed

from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.buffers.persistent import exchanged
from wisp_plan.memory.cache import cache_sizes, model_groups
from wisp_plan.presets import shape_spec
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Batch
from wisp_runtime.bench.contexts import fill_with_noise
from wisp_runtime.layers.cache import ModelCache, allocate
from wisp_runtime.models.load import random_model
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.cpu.packed import PackedMatrix
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.persistent.arguments import (
    CLUSTER,
    THREADS,
    WIDTHS,
    arguments_type,
    cluster_reciprocal,
    layer_table,
    model_arguments,
    require_repeated,
)
from wisp_runtime.ops.cuda.persistent.model import kernel_model, max_sequences
from wisp_runtime.ops.protocol.weights.row_permutation import fused_permutation
from wisp_runtime.ops.reference.packing import pack, permuted_rows

BF16 = ml_dtypes.bfloat16
TOKENS = 16  # of a KV block
MAX_STATES = 34  # of a step of recurrent layers
_ALIGNMENT_BYTES = 1024
_STRIDE_EXTRA = 256  # bytes between two experts' matrices
SOURCE = KERNELS / "hopper/persistent/persistent_decode.cu"
_BY_ROW = ("tokens", "positions", "slots", "context_lengths", "block_tables")


def small(name: str, max_context: int = 4096, **sizes: int) -> ModelSpec:
    """Return the spec of a named shape with other sizes."""
    spec = changed(shape_spec(name), max_context=max_context, **sizes)
    attention = attention_of(spec)
    return changed(spec, rope=replace(attention.rope, rotary_size=attention.head_size))


def small_hybrid(layers: int, ffn: MoeSpec | None = None, **sizes: int) -> ModelSpec:
    """Return a Qwen3.5 of other sizes, dense or with a mixture: Gated DeltaNet in three layers of four."""
    spec = shape_spec("qwen3.5-9b" if ffn is None else "qwen3.6-35b-a3b")
    delta_net, attention = spec.mixers(DeltaNetSpec)[0], spec.mixers(AttentionSpec)[0]
    mixers = {
        DeltaNetSpec: replace(delta_net, key_heads=sizes["key_heads"], value_heads=sizes["value_heads"]),
        AttentionSpec: replace(attention, heads=sizes["heads"], kv_heads=sizes["kv_heads"]),
    }
    block = ffn or replace(spec.ffns(DenseSpec)[0], inner=sizes["inner"])
    own = (replace(layer, mixer=mixers[type(layer.mixer)], ffn=block) for layer in spec.layers[:layers])
    fields = {"hidden": sizes["hidden"], "vocab": sizes["vocab"], "max_context": 4096}
    return replace(spec, layers=tuple(own), **fields)


class EmulatedStep:
    """A model of random weights, a cache full of noise, and both ways to run a step of it.

    Args:
        spec: the model.
        blocks: thread blocks of the grid.
        options: more for the kernel's compiler.
        source: the kernel.
        kv_blocks: size of the cache.
        kv: its format.
    """

    def __init__(
        self,
        spec: ModelSpec,
        blocks: int,
        options: tuple[str, ...] = (),
        source: Path = SOURCE,
        kv_blocks: int = 320,
        kv: str = "bf16",
    ) -> None:
        self.spec, self.blocks, self.ops = spec, blocks, CpuOps(1)
        self.kernels = Emulated(source, [*Catalogue().defines("hopper", kernel_model(spec)), *options])
        self.model = random_model(spec, self.ops, 7)
        self.cache = self._cache(kv_blocks, kv)
        dtype = BF16 if kv == "bf16" else np.uint8
        for array in itertools.chain(*self.cache.groups):
            array[:] = array.astype(dtype)
        self.groups = [[array.astype(dtype) for array in group] for group in self.cache.groups]
        self.keys, self.values = self.groups[0]
        counts = self.model.expert_load.counts
        self.expert_counts = None if counts is None else _aligned(counts.shape, counts.dtype)
        self.states = self._states()
        self.hang_report = np.zeros(4, np.int32)
        self._kept: list[np.ndarray] = []
        self._strides: dict[str, int] = {}
        self._fixed = self._weights()

    def _cache(self, blocks: int, kv: str) -> ModelCache:
        """Return a cache of noise; its scales, if its format has any, differ by layer."""
        layers = KvLayers.of(kv, "cpu")
        scales = {layer: (0.5 + layer, 0.75 / (1 + layer)) for layer in range(len(self.spec.layers))}
        sizes = cache_sizes(
            model_groups(self.spec, layers),
            blocks,
            block_tokens=TOKENS,
            max_concurrent=MAX_STATES,
            max_step_tokens=blocks * TOKENS,
            max_context=blocks * TOKENS,
        )
        cache = allocate(sizes, self.ops, scales)
        fill_with_noise(cache, self.ops)
        return cache

    def _states(self) -> tuple[np.ndarray, ...]:
        """Return the emulated GPU's recurrent states: float32, and inputs of convolutions in bf16."""
        random = np.random.default_rng(5)
        for array in self.cache.states:
            array[:] = random.standard_normal(array.shape, np.float32).astype(BF16)
        dtypes = (np.float32, BF16)
        return tuple(array.astype(dtype) for array, dtype in zip(self.cache.states, dtypes, strict=False))

    def _weights(self) -> dict[str, int]:
        spec, attention = self.spec, require_repeated(self.spec).attention
        weights, rotation = self.model.weights, self.model.rope_table(attention)

        def vector(values, permutation="plain", dtype=BF16):
            placed = np.zeros(values.shape, dtype)
            placed[permuted_rows(len(values), permutation)] = values
            return self._pointer(placed)

        def held(name):
            declared = weights.specs.get(name)
            if declared is None:
                return 0
            weight, permutation = weights[name], fused_permutation(declared.rows)
            if isinstance(weight, tuple):
                return self._experts(name, weight, permutation)
            if not declared.is_matrix:
                of_own_dtype = np.float32 if declared.dtype == "F32" else BF16
                if weight.ndim == 2 and permutation != "plain":  # of each expert
                    rows = permuted_rows(weight.shape[1], permutation)
                    return vector(weight[:, np.argsort(rows)], "plain", of_own_dtype)
                return vector(weight, permutation, of_own_dtype)
            return self._pointer(self.packed(name, _plain(weight), permutation))

        known = cache(held)
        table = _aligned(layer_table(spec, known, self.cache.encodings, 0).shape, np.dtype(np.uint64))
        table[:] = layer_table(spec, known, self.cache.encodings, table.ctypes.data)
        embeddings = held("embeddings.weight")
        return (
            {
                "layers": self._pointer(table),
                "embeddings": embeddings,
                "head": embeddings if spec.ties_embeddings else held("head.weight"),
                "final_norm": held("norm.weight"),
                "cosines": self._pointer(np.ascontiguousarray(rotation.cosines)),
                "sines": self._pointer(np.ascontiguousarray(rotation.sines)),
                "known_positions": len(rotation.cosines),
            }
            | self._strides
            | self._exchanged()
        )

    def packed(self, name: str, matrix: np.ndarray, permutation: str) -> np.ndarray:
        """Pack a bf16 matrix ``[out, in]``; other formats pack in their own way.

        ``name`` of an expert's matrix ends with its index.
        """
        return pack(matrix, permutation)

    def _experts(self, name: str, weights: tuple[PackedMatrix, ...], permutation: str) -> int:
        """Return the address of the first expert's matrix; others follow, bytes apart, the shared last."""
        matrices = {f"{name}.{index}": weight for index, weight in enumerate(weights)}
        of_shared = name.replace("experts", "shared")
        if of_shared in self.model.weights.specs:
            matrices[of_shared] = self.model.weights[of_shared]
        packed = [
            self.packed(of, _plain(weight), permutation).reshape(-1).view(np.uint8)
            for of, weight in matrices.items()
        ]
        stride = packed[0].nbytes + _STRIDE_EXTRA
        together = np.zeros((len(packed), stride), np.uint8)
        for to, matrix in zip(together, packed, strict=True):
            to[: matrix.nbytes] = matrix
        self._strides[f"{name.split('.')[-2]}_stride"] = stride
        return self._pointer(together)

    def replace(self, name: str, matrix: np.ndarray) -> None:
        """Give the general path other values of a matrix."""
        *of, index = name.rsplit(".", 1)
        held = self.model.weights[of[0]][int(index)] if index.isdigit() else self.model.weights[name]
        tiles = held.tiles
        rows = np.zeros((tiles.shape[0] * tiles.shape[2], tiles.shape[1]), np.float32)
        rows[: len(matrix)] = matrix
        tiles[:] = rows.reshape(tiles.shape[0], tiles.shape[2], -1).transpose(0, 2, 1)

    def _exchanged(self) -> dict[str, int]:
        self.exchanged = {
            buffer.name.removeprefix("step."): _aligned(buffer.shape, np.dtype(buffer.dtype))
            for buffer in exchanged(self.spec, max_sequences(self.spec))
        }
        if self.expert_counts is not None:
            self.exchanged["expert_counts"] = self.expert_counts
        return {name: self._pointer(array) for name, array in self.exchanged.items()}

    def _pointer(self, array: np.ndarray) -> int:
        if array.ctypes.data % _ALIGNMENT_BYTES:
            place = _aligned(array.shape, array.dtype)
            place[...] = array
            array = place
        self._kept.append(array)
        return array.ctypes.data

    def batch(self, contexts: list[int], seed: int = 1) -> Batch:
        """Make a step of sequences with so many tokens, the new one included; their blocks lie anywhere."""
        batch, *others = (
            decode_batch(contexts, self.spec.vocab, range(len(keys[0])), TOKENS, seed + 1000 * group)
            for group, (keys, _) in enumerate(self.groups)
        )
        batch = replace(batch, other_groups=tuple(others))
        if not self.states:
            return batch
        slots = np.random.default_rng(seed).permutation(MAX_STATES)[: len(contexts)].astype(np.int32)
        return replace(batch, state_slots=np.where(np.array(contexts) > 0, slots, -1).astype(np.int32))

    def rows(self, batch: Batch, rows: np.ndarray) -> Batch:
        """Return a step of some of the sequences of another."""
        starts = np.arange(len(rows) + 1, dtype=np.int32)
        names = _BY_ROW if batch.state_slots is None else (*_BY_ROW, "state_slots")
        return replace(
            batch,
            **{name: getattr(batch, name)[rows] for name in names},
            query_starts=starts,
            query_starts_host=tuple(starts.tolist()),
            logit_rows=np.arange(len(rows)),
            other_groups=tuple(self.rows(other, rows) for other in batch.other_groups),
            context_lengths_host=tuple(batch.context_lengths[rows].tolist()),
        )

    def general(self, batch: Batch, layers: int | None = None) -> np.ndarray:
        """Compute the step by the general path, rows of padding left out; K and V go to the CPU's cache."""
        live = self.rows(batch, np.flatnonzero(batch.context_lengths))
        return self.model.forward(live, self.cache, layers=layers).logits.copy()

    def launch(
        self,
        batch: Batch,
        seed: int,
        timeout: int = 3_000_000,
        parallel_splits: int = 1,
        layers: int | None = None,
    ) -> np.ndarray:
        """Compute the step on the emulated GPU; new keys and values go to its own cache."""
        rows, spec, sizes = len(batch.tokens), self.spec, dict[str, int]()
        width = next(width for width in WIDTHS if width >= rows)
        logits = np.full((rows, spec.vocab), np.nan, np.float32)
        self.hang_report[:] = 0
        arrays = {
            "logits": logits,
            "tokens": batch.tokens,
            "positions": batch.positions,
            "contexts": batch.context_lengths,
            "tables": batch.block_tables,
            "slots": batch.slots,
            "keys": self.keys,
            "values": self.values,
            "hang_report": self.hang_report,
        }
        if self.states:
            arrays |= {
                "states": self.states[0],
                "conv_inputs": self.states[1],
                "state_slots": batch.state_slots,
            }
        for other, (keys, values) in zip(batch.other_groups, self.groups[1:], strict=True):
            arrays |= {
                "full_tables": other.block_tables,
                "full_slots": other.slots,
                "full_keys": keys,
                "full_values": values,
            }
            sizes = {"full_table_width": other.block_tables.shape[1], "full_kv_blocks": keys.shape[1]}
        arguments = arguments_type(spec)(
            **self._fixed,
            **{name: array.ctypes.data for name, array in arrays.items()},
            timeout_clocks=timeout,
            cluster_reciprocal=cluster_reciprocal(self.blocks),
            layer_count=len(spec.layers) if layers is None else layers,
            sequences=rows,
            table_width=batch.block_tables.shape[1],
            kv_blocks=self.cache.blocks,
            block_tokens=TOKENS,
            parallel_splits=parallel_splits,
            **sizes,
            **model_arguments(spec),
        )
        maps = [self._tensor_map(cache) for cache in itertools.chain(*self.groups)]
        self.kernels.launch(
            f"persistent_decode_n{width}",
            [*maps, arguments],
            blocks=self.blocks,
            threads=THREADS,
            cluster=CLUSTER,
            seed=seed,
        )
        return logits

    def _tensor_map(self, cache: np.ndarray) -> TensorMap:
        size = require_repeated(self.spec).attention.head_size
        if cache.dtype == np.uint8:
            return tensor_map(cache.reshape(-1, 128).view(BF16), TOKENS * size // 128, 64)
        return tensor_map(cache.reshape(-1, size), TOKENS, 64)


def _plain(weight: PackedMatrix) -> np.ndarray:
    """Return a matrix as bf16 ``[out, in]``."""
    plain = weight.tiles.transpose(0, 2, 1).reshape(-1, weight.tiles.shape[1])[: weight.outputs]
    return plain.astype(BF16)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return zeros that begin at a multiple of 1,024 bytes, as a GPU's allocations do."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + size].view(dtype).reshape(shape)
