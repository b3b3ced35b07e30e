"""Files of the written checkpoint: tensors of each, and one file written in parallel under another name.

Tensors lie by the size of their dtype, the widest first, as the ``safetensors`` library writes them, so that
each is aligned; their bytes are written in any order.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wisp_plan.checkpoint.header import DTYPE_BITS
from wisp_plan.checkpoint.index import INDEX_FILE, SINGLE_FILE
from wisp_runtime.batch import Array
from wisp_runtime.quantize.durable_file import PARTIAL_SUFFIX, sync_folder
from wisp_runtime.quantize.formats import OutputTensor
from wisp_runtime.quantize.plan import CopiedTensor, QuantizedTensor

Item = CopiedTensor | QuantizedTensor
Put = Callable[[OutputTensor, int, Array], None]
"""``put(tensor, first_byte, values)``: write contiguous ``values`` at a byte of a tensor."""
Job = Callable[[Put], int]
"""Part of an item's work; returns how many bytes of the source it has done."""

_HEADER_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the result."""

    file: str
    items: tuple[Item, ...]

    @property
    def tensors(self) -> tuple[OutputTensor, ...]:
        """Its tensors in the order of their bytes."""
        listed = [tensor for item in self.items for tensor in item.tensors]
        return tuple(sorted(listed, key=lambda tensor: -DTYPE_BITS[tensor.dtype]))

    @property
    def source_bytes(self) -> int:
        """Bytes of the tensors that it is made from."""
        return sum(item.source.size_bytes for item in self.items)


def plan_shards(items: Sequence[Item], shard_bytes: int) -> tuple[Shard, ...]:
    """Distribute items over files of at most ``shard_bytes``, or of one larger item."""
    groups: list[list[Item]] = [[]]
    filled = 0
    for item in items:
        size = sum(map(size_bytes, item.tensors))
        if groups[-1] and filled + size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += size
    if len(groups) == 1:
        return (Shard(SINGLE_FILE, tuple(groups[0])),)
    return tuple(
        Shard(f"model-{number:05}-of-{len(groups):05}.safetensors", tuple(group))
        for number, group in enumerate(groups, start=1)
    )


def size_bytes(tensor: OutputTensor) -> int:
    """Return the bytes of a tensor."""
    return math.prod(tensor.shape) * DTYPE_BITS[tensor.dtype] // 8


def write_shard(
    path: Path, shard: Shard, jobs: Iterable[Job], threads: int, on_done: Callable[[int], None]
) -> None:
    """Write a shard; ``path`` appears when it is complete and on the disk.

    Args:
        path: path of the file; a partial one beside it is replaced.
        shard: its tensors.
        jobs: the work, in any order; together they write each byte once.
        threads: threads that share the jobs.
        on_done: called from this thread with the source's bytes of each job that is done.
    """
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    header, starts = _header(shard.tensors)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(descriptor, header, 0)

        def put(tensor: OutputTensor, first: int, values: Array) -> None:
            _write_all(descriptor, memoryview(values).cast("B"), starts[tensor.name] + first)

        with ThreadPoolExecutor(threads, "wisp-quantize") as pool:
            try:
                for done in pool.map(lambda job: job(put), jobs):
                    on_done(done)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.rename(path)
    sync_folder(path.parent)


def index_of(shards: Sequence[Shard]) -> dict[str, object]:
    """Return the contents of ``model.safetensors.index.json``."""
    files = {tensor.name: shard.file for shard in shards for tensor in shard.tensors}
    total = sum(size_bytes(tensor) for shard in shards for tensor in shard.tensors)
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}


def remove_partials(folder: Path) -> None:
    """Delete files that an interrupted run left."""
    for path in folder.glob(f"*{PARTIAL_SUFFIX}"):
        with suppress(FileNotFoundError):
            path.unlink()


def is_weights(name: str) -> bool:
    """Whether a file of the source holds weights, or lists those that do."""
    return name == INDEX_FILE or name.endswith((".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5"))


def _write_all(descriptor: int, values: memoryview, start: int) -> None:
    while values:
        count = os.pwrite(descriptor, values, start)
        values, start = values[count:], start + count


def _header(tensors: Sequence[OutputTensor]) -> tuple[bytes, dict[str, int]]:
    """Return the header, and the offset in the file of each tensor."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    ends: dict[str, int] = {}
    end = 0
    for tensor in tensors:
        start, end = end, end + size_bytes(tensor)
        ends[tensor.name] = start
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + start for name, start in ends.items()}
