"""Calibration run: factors of every layer from a text, one layer in memory at a time.

Inputs are those of the unquantized model, so layers do not depend on each other's rounding. The factors of a
layer are kept in the state folder, with the residual stream after it: an interrupted run goes on there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.declaration import declare
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.weights.upload import STORED
from wisp_runtime.quantize.durable_file import durable_file
from wisp_runtime.quantize.encoding import nvfp4_tensor_scale
from wisp_runtime.quantize.factors import TensorFactors
from wisp_runtime.quantize.formats import TargetFormat
from wisp_runtime.quantize.layer_inputs import LayerRunner
from wisp_runtime.quantize.plan import QuantizedTensor
from wisp_runtime.quantize.smoothing import sampled_rows, search, shared_by_heads
from wisp_runtime.quantize.work import Worker

OnProgress = Callable[[int, int], None]
"""``on_progress(layers_done, layers)``."""
Factors = dict[str, TensorFactors]


@dataclass(frozen=True, slots=True)
class Smoothed:
    """Projections that share an input, and the tensors whose outputs it is made of.

    Attributes:
        inputs: name of the weight whose input is recorded, as in the first layer.
        consumers: names of the projections.
        producers: names of the norm, or of a projection and its bias.
        share: function that makes scales alike; None: each column has its own.
        heads: value heads, query heads that share one, and their size, where scales are those of heads.
    """

    inputs: str
    consumers: tuple[str, ...]
    producers: tuple[str, ...]
    share: Callable[[Array], Array] | None = None
    heads: tuple[int, int, int] | None = None


def smoothed(spec: ModelSpec, index: int) -> Iterator[Smoothed]:
    """Yield a layer's projections that are smoothed together: those of attention, and of a gated MLP."""
    layer, prefix = spec.layers[index], f"layers.{index}."
    tensors = {
        weight.name.removeprefix(prefix): tuple(source.tensor for source in weight.sources)
        for weight in declare(spec)
        if weight.name.startswith(prefix)
    }
    if isinstance(layer.mixer, AttentionSpec):
        mixer = layer.mixer
        yield Smoothed("layers.0.qkv.weight", tensors["qkv.weight"], tensors["input_norm.weight"])
        share = shared_by_heads(mixer.heads, mixer.kv_heads, mixer.head_size)
        values = tensors["qkv.weight"][2:] + tensors.get("qkv.bias", ())[2:]
        shape = (mixer.kv_heads, mixer.heads // mixer.kv_heads, mixer.head_size)
        yield Smoothed("layers.0.output.weight", tensors["output.weight"], values, share, shape)
    if isinstance(layer.ffn, DenseSpec) and len(set(tensors.get("gate_up.weight", ()))) == 2:
        yield Smoothed("layers.0.gate_up.weight", tensors["gate_up.weight"], tensors["mlp_norm.weight"])
        ups = tensors["gate_up.weight"][1:] + tensors.get("gate_up.bias", ())[1:]
        yield Smoothed("layers.0.down.weight", tensors["down.weight"], ups)


class Calibration:
    """Factors of all layers.

    Args:
        runner: runner of the layers.
        worker: reader of tensors.
        items: projections that are quantized, by their tensors' names.
        tensors: all tensors.
    """

    def __init__(
        self,
        runner: LayerRunner,
        worker: Worker,
        items: Mapping[str, QuantizedTensor],
        tensors: Mapping[str, TensorInfo],
    ) -> None:
        self._runner, self._worker, self._items, self._tensors = runner, worker, items, tensors

    def run(self, spec: ModelSpec, tokens: list[int], state: Path, on_progress: OnProgress) -> Factors:
        """Return the factors of every tensor that has some.

        Args:
            spec: the model.
            tokens: tokens of the calibration text.
            state: folder that keeps the factors of finished layers, and the residual stream.
            on_progress: called after each layer.
        """
        layers = len(spec.layers)
        done, factors, stream = _saved(state, layers)
        on_progress(done, layers)
        if done == layers:
            return factors
        stream = self._runner.embed(tokens) if stream is None else stream
        with ThreadPoolExecutor(self._worker.threads, "wisp-calibrate") as executor:
            for index in range(done, layers):
                stream, inputs = self._runner.run(index, stream)
                of_layer: Factors = {}
                for group in smoothed(spec, index):
                    self._add(of_layer, group, inputs[group.inputs], executor)
                _save(_stream_path(state, index + 1), {"stream": stream})
                _save(_factors_path(state, index), _arrays(of_layer))
                _stream_path(state, index).unlink(missing_ok=True)
                factors |= of_layer
                on_progress(index + 1, layers)
        return factors

    def _add(self, of_layer: Factors, group: Smoothed, inputs: Array, executor: ThreadPoolExecutor) -> None:
        """Search the scales of a group, and add its tensors' factors."""
        if not all(name in self._items for name in group.consumers):
            return
        items = [self._items[name] for name in group.consumers]
        weights = [self._rows(item) for item in items]
        share = group.share or (lambda scales: scales)
        scales = search(inputs, weights, lambda rows: self._round(items, rows), executor, share).scales
        produced = scales
        if group.heads is not None:
            produced = np.ascontiguousarray(scales.reshape(group.heads)[:, 0]).reshape(-1)
        for name in group.producers:
            if name in self._tensors:
                before = of_layer.get(name, TensorFactors())
                of_layer[name] = TensorFactors(before.inputs, produced, before.importance)
        scales = self._as_stored(group, scales)
        energy = np.square(inputs, dtype=np.float32).mean(axis=0) / np.square(scales)
        for name in group.consumers:
            of_layer[name] = TensorFactors(scales, of_layer.get(name, TensorFactors()).outputs, energy)

    def _as_stored(self, group: Smoothed, scales: Array) -> Array:
        """Return the scales by which a norm is divided once it is rounded to its dtype."""
        tensor = self._tensors[group.producers[0]]
        if len(tensor.shape) > 1:  # a projection, whose rows are rounded after they are divided
            return scales
        before = self._worker.read_rows(tensor, 0, tensor.shape[0])
        after = (before / scales).astype(STORED[tensor.dtype]).astype(np.float32)
        return np.divide(before, after, out=scales.copy(), where=after != 0)

    def _rows(self, item: QuantizedTensor) -> Array:
        rows = sampled_rows(item.source.shape[0])
        return np.concatenate([self._worker.read_rows(item.source, row, 1) for row in rows])

    def _round(self, items: Sequence[QuantizedTensor], rows: Sequence[Array]) -> list[Array]:
        target: TargetFormat = self._worker.target
        largest = max(float(np.abs(weight).max()) for weight in rows) if target.has_tensor_scale else 0.0
        scale = nvfp4_tensor_scale(largest)
        return [
            target.rounder(item.group, item.scale_dtype, scale)(weight, None)
            for item, weight in zip(items, rows, strict=True)
        ]


def _factors_path(state: Path, index: int) -> Path:
    return state / f"layer-{index:04}.npz"


def _stream_path(state: Path, index: int) -> Path:
    """Return the file of the stream before a layer; it is there when the factors of the layer before are."""
    return state / f"stream-{index:04}.npz"


def _saved(state: Path, layers: int) -> tuple[int, Factors, Array | None]:
    """Return how many layers an earlier run has done, their factors, and the stream after them.

    Files that cannot be read count as missing: the power failed, or the disk.
    """
    factors: Factors = {}
    done = 0
    while done < layers and (saved := _load(_factors_path(state, done))) is not None:
        factors |= _factors(saved)
        done += 1
    stream = _load(_stream_path(state, done)) if 0 < done < layers else None
    if stream is None and done < layers:
        return 0, {}, None
    return done, factors, stream and stream["stream"]


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    with durable_file(path) as file:
        np.savez(file, **arrays)


def _load(path: Path) -> dict[str, Array] | None:
    """Return the arrays of a file that :func:`_save` wrote; None: it is not there, or damaged."""
    try:
        with np.load(path) as saved:
            return {key: saved[key] for key in saved.files}
    except (FileNotFoundError, EOFError, ValueError, BadZipFile):
        return None


def _arrays(factors: Factors) -> dict[str, Array]:
    return {
        f"{name}|{field}": values
        for name, each in factors.items()
        for field in ("inputs", "outputs", "importance")
        if (values := getattr(each, field)) is not None
    }


def _factors(arrays: Mapping[str, Array]) -> Factors:
    fields: dict[str, dict[str, Array]] = {}
    for key, values in arrays.items():
        name, _, field = key.rpartition("|")
        fields.setdefault(name, {})[field] = values
    return {name: TensorFactors(**each) for name, each in fields.items()}
