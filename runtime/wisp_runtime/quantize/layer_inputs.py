"""Run a model on the CPU with one layer in memory at a time, and keep the inputs of its projections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.spec.weight import WeightSpec
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.stored import as_stored
from wisp_plan.weights.tensors import tensors_of
from wisp_runtime.batch import Array
from wisp_runtime.layers.cache import allocate_blocks
from wisp_runtime.layers.context import LayerContext
from wisp_runtime.layers.rotary import RopeTables
from wisp_runtime.models.decoder import Layer
from wisp_runtime.models.load import Checkpoint
from wisp_runtime.models.single_sequence import BLOCK_TOKENS, blocks_of, sequence_batch
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.protocol.attention import QkvProjection
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.ops.protocol.weights.upload import STORED
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.chunks import plan
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.reader import WeightReader

WINDOW_TOKENS = 512
_FIRST = "layers.0"


class LayerRunner:
    """Runs the layers of an unquantized checkpoint one after the other.

    Args:
        checkpoint: the checkpoint.
        files: its open files.
        ops: the CPU.
    """

    def __init__(self, checkpoint: Checkpoint, files: Files, ops: CpuOps) -> None:
        self._checkpoint, self._files, self._ops = checkpoint, files, ops
        window = min(WINDOW_TOKENS, checkpoint.spec.max_context)
        self._spec = replace(checkpoint.spec, max_context=window)
        self._weights = as_stored(declare(checkpoint.spec), checkpoint.tensors.by_name, None)
        self._ropes = RopeTables(cast(Ops, ops), window)

    def embed(self, tokens: Sequence[int]) -> Array:
        """Return the residual stream of ``tokens``, ``[N, D]`` float32, reading only their embeddings."""
        (source,) = next(weight for weight in self._weights if weight.role == "embedding").sources
        table = self._checkpoint.tensors.by_name[source.tensor]
        rows = {token: self._row(table, token) for token in sorted(set(tokens))}
        return np.stack([rows[token] for token in tokens]) * np.float32(self._spec.embedding_scale)

    def _row(self, table: TensorInfo, row: int) -> Array:
        size = table.size_bytes // table.shape[0]
        raw = self._files.read_bytes(table, table.start + row * size, size, np.empty(size, np.uint8))
        return raw.view(STORED[table.dtype]).astype(np.float32)

    def run(self, index: int, stream: Array) -> tuple[Array, dict[str, Array]]:
        """Run a layer.

        Args:
            index: position of the layer.
            stream: ``[N, D]``, the residual stream before it.

        Returns:
            The stream after it, and the inputs ``[N, K]`` of its projections by the weights' names,
            ``layers.0.qkv.weight`` whichever layer it is.
        """
        spec = replace(self._spec, layers=(self._spec.layers[index],))
        weights = self._load(index)
        recording = _RecordingOps(self._ops, weights)
        layer = Layer(LayerContext(cast(Ops, recording), weights, spec, 0, self._ropes), spec.layers[0])
        after = np.empty_like(stream)
        for first in range(0, len(stream), spec.max_context):
            residual = stream[first : first + spec.max_context].copy()
            tokens = len(residual)
            blocks = blocks_of(tokens)
            cache = allocate_blocks(spec, cast(Any, self._ops), blocks=blocks, block_tokens=BLOCK_TOKENS)
            x = layer(None, residual, sequence_batch([0] * tokens, 0, tokens, [tokens - 1]), cache)
            after[first : first + tokens] = residual + x
        return after, {name: np.concatenate(parts) for name, parts in recording.inputs.items()}

    def _load(self, index: int) -> Weights:
        prefix = f"layers.{index}."
        specs = [_renamed(spec, prefix) for spec in self._weights if spec.name.startswith(prefix)]
        weights = Weights(cast(Any, self._ops), specs)
        by_name = self._checkpoint.tensors.by_name
        wanted = {tensor.name: by_name[tensor.name] for tensor in tensors_of(specs)}
        uploader = self._ops.uploader(0)
        chunks = plan(specs, wanted, uploader.chunk_bytes)
        with WeightReader(self._files, chunks, weights, uploader) as reader:
            reader.wait(lambda _done, _total: None)
        return weights


def _renamed(spec: WeightSpec, prefix: str) -> WeightSpec:
    return replace(spec, name=f"{_FIRST}.{spec.name.removeprefix(prefix)}")


class _RecordingOps:
    """The CPU's ops, keeping what is multiplied with each weight.

    Attributes:
        inputs: inputs ``[N, K]`` of each call, by the weight's name.
    """

    def __init__(self, ops: CpuOps, weights: Weights) -> None:
        self._ops = ops
        self._names = {id(weights[name]): name for name in weights.specs}
        self.inputs: dict[str, list[Array]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def linear(self, x: Array, weight: Any, *rest: Any) -> Array:
        self._keep(x, weight)
        return self._ops.linear(x, weight, *rest)

    def swiglu(self, x: Array, weight: Any, *rest: Any) -> Array:
        self._keep(x, weight)
        return self._ops.swiglu(x, weight, *rest)

    def scaled_swiglu(self, x: Array, weight: Any, *rest: Any) -> Array:
        self._keep(x, weight)
        return self._ops.scaled_swiglu(x, weight, *rest)

    def project_qkv(self, x: Array, projection: QkvProjection, *rest: Any) -> Array:
        self._keep(x, projection.weight)
        return self._ops.project_qkv(x, projection, *rest)

    def _keep(self, x: Array, weight: Any) -> None:
        self.inputs.setdefault(self._names[id(weight)], []).append(x.copy())
