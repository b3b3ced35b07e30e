"""Jobs that write a shard: rows are read, scaled, encoded and written, some at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from wisp_plan.checkpoint.header import TensorInfo
from wisp_runtime.batch import Array
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.ops.protocol.weights.upload import STORED
from wisp_runtime.quantize.encoding import nvfp4_tensor_scale
from wisp_runtime.quantize.factors import NO_FACTORS, TensorFactors
from wisp_runtime.quantize.formats import STORED_SCALE, TargetFormat
from wisp_runtime.quantize.plan import CopiedTensor, QuantizedTensor
from wisp_runtime.quantize.shards import Job, Put, Shard
from wisp_runtime.weights.files import Files

_ROWS_ELEMENTS = 1 << 18  # a megabyte of float32: the steps of an encoding stay in a core's cache
_COPY_BYTES = 8 << 20


@dataclass(slots=True)
class Worker:
    """Maker of a shard's jobs.

    Attributes:
        files: the open files of the source.
        target: format to quantize into.
        threads: threads that look for the largest weights.
        factors: factors of tensors that have some.
    """

    files: Files
    target: TargetFormat
    threads: int
    factors: Mapping[str, TensorFactors] = field(default_factory=dict)
    _tensor_scales: dict[str, float] = field(default_factory=dict)

    def jobs(self, shard: Shard) -> Iterator[Job]:
        """Yield the jobs that write a shard's tensors."""
        if self.target.has_tensor_scale:
            self._find_tensor_scales([item for item in shard.items if isinstance(item, QuantizedTensor)])
        for item in shard.items:
            yield from self._copies(item) if isinstance(item, CopiedTensor) else self._encodings(item)

    def read_rows(self, tensor: TensorInfo, first: int, count: int) -> Array:
        """Return rows, or elements of a vector, in float32 and scaled.

        Raises:
            WeightsUnreadable: the file ended, or a weight is not finite.
        """
        row_bytes = tensor.size_bytes // tensor.shape[0]
        raw = self._read(tensor, first * row_bytes, count * row_bytes)
        values = raw.view(STORED[tensor.dtype]).astype(np.float32).reshape(count, *tensor.shape[1:])
        if not np.isfinite(values.max() - values.min()):
            raise WeightsUnreadable(
                f"{tensor.file}: {tensor.name} has a weight that is not finite; no scale fits it. "
                "The file is damaged: download it again."
            )
        return self.factors.get(tensor.name, NO_FACTORS).apply(values, first)

    def _read(self, tensor: TensorInfo, first: int, count: int) -> Array:
        return self.files.read_bytes(tensor, tensor.start + first, count, np.empty(count, np.uint8))

    def _copies(self, item: CopiedTensor) -> Iterator[Job]:
        tensor = item.source
        if tensor.name in self.factors:
            yield partial(self._copy_scaled, item)
            return
        for first in range(0, tensor.size_bytes, _COPY_BYTES):
            yield partial(self._copy, item, first, min(_COPY_BYTES, tensor.size_bytes - first))

    def _copy(self, item: CopiedTensor, first: int, count: int, put: Put) -> int:
        put(item.tensors[0], first, self._read(item.source, first, count))
        return count

    def _copy_scaled(self, item: CopiedTensor, put: Put) -> int:
        values = self.read_rows(item.source, 0, item.source.shape[0])
        put(item.tensors[0], 0, values.astype(STORED[item.source.dtype]).view(np.uint8))
        return item.source.size_bytes

    def _encodings(self, item: QuantizedTensor) -> Iterator[Job]:
        rows, columns = item.source.shape
        step = max(1, _ROWS_ELEMENTS // columns)
        scale = self._tensor_scales.get(item.source.name, 0.0)
        for first in range(0, rows, step):
            yield partial(self._encode, item, first, min(step, rows - first), scale)
        yield partial(self._write_constants, item, scale)

    def _encode(self, item: QuantizedTensor, first: int, count: int, tensor_scale: float, put: Put) -> int:
        rows = self.read_rows(item.source, first, count)
        encode = self.target.encoder(item.group, item.scale_dtype, tensor_scale)
        importance = self.factors.get(item.source.name, NO_FACTORS).importance
        values, scales = encode(rows, importance)
        stored = scales.astype(STORED_SCALE[item.layout.scales.dtype])
        for tensor, part in ((item.layout.values, values), (item.layout.scales, stored)):
            flat = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            put(tensor, first * (flat.nbytes // count), flat)
        return count * (item.source.size_bytes // item.source.shape[0])

    def _write_constants(self, item: QuantizedTensor, tensor_scale: float, put: Put) -> int:
        for tensor, values in item.layout.constants:
            known = values if values.any() else np.array([tensor_scale], np.float32)
            put(tensor, 0, known.view(np.uint8))
        return 0

    def _find_tensor_scales(self, items: Sequence[QuantizedTensor]) -> None:
        """Find the scales that weights share with those that are computed together with them."""
        fused = {item.fused: None for item in items if item.source.name not in self._tensor_scales}
        wanted = [tensor for tensors in fused for tensor in tensors]
        with ThreadPoolExecutor(self.threads, "wisp-quantize") as pool:
            largest = dict(
                zip((tensor.name for tensor in wanted), pool.map(self._largest, wanted), strict=True)
            )
        for tensors in fused:
            names = [tensor.name for tensor in tensors]
            scale = nvfp4_tensor_scale(max(largest[name] for name in names))
            self._tensor_scales |= dict.fromkeys(names, scale)

    def _largest(self, tensor: TensorInfo) -> float:
        rows, columns = tensor.shape
        step = max(1, _ROWS_ELEMENTS // columns)
        starts = range(0, rows, step)
        return max(
            float(np.abs(self.read_rows(tensor, first, min(step, rows - first))).max()) for first in starts
        )
