"""Read a model's folder: its dimensions, then its tensors into the weights that the model asks for.

Headers are checked whole before memory is allocated; tensors are read in pieces by a few threads
and widened to float32 on the way. Not a memory map: a file cut short beneath one kills the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from wisp_plan.checkpoint import read_config, read_directory
from wisp_plan.errors import CheckpointMissing, ConfigMissing, PlanError
from wisp_plan.header import TensorInfo
from wisp_plan.inventory import Inventory
from wisp_plan.spec import ModelSpec
from wisp_plan.tensors import check_tensors
from wisp_runtime.batch import Array
from wisp_runtime.errors import ModelNotFound, ModelUnsupported, WeightsUnreadable
from wisp_runtime.memory.weights import Weights
from wisp_runtime.models.families import model_class
from wisp_runtime.models.model import Model
from wisp_runtime.ops.backend import Ops

OnProgress = Callable[[int, int], None]
"""``on_progress(bytes_done, total_bytes)``: called from the thread that called, in order."""

_PIECE_BYTES = 1 << 20
_THREADS = 4
_STORED: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def read_spec(path: Path) -> ModelSpec:
    """Name every dimension of the model in the folder ``path``.

    Raises:
        ModelNotFound: there is no ``config.json``.
        ModelUnsupported: it is broken, or describes what we cannot run.
    """
    try:
        return read_config(path)
    except ConfigMissing as error:
        raise ModelNotFound(error.message) from error
    except PlanError as error:
        raise ModelUnsupported(error.message) from error


def load_model(path: Path, spec: ModelSpec, ops: Ops, on_progress: OnProgress | None = None) -> Model:
    """Read the checkpoint in ``path`` into a model on the device of ``ops``.

    Args:
        path: a folder with safetensors files.
        spec: what :func:`read_spec` found there.
        ops: the device.
        on_progress: called as bytes are read.

    Raises:
        ModelNotFound: there is no checkpoint in the folder.
        WeightsUnreadable: a file is truncated or damaged, or its tensors are not those of the model.
        ModelUnsupported: no code for the family.
    """
    family = model_class(spec)
    inventory = _read_inventory(path, spec)
    weights = Weights(ops, family.parameters(spec))
    wanted = [inventory.by_name[name] for name in weights.tensors]
    try:
        _fill(path, wanted, weights, on_progress or _ignore)
    except OSError as error:
        raise WeightsUnreadable(f"{path}: reading the weights failed: {error.strerror}.") from error
    return family(spec, weights, ops)


def _ignore(_done: int, _total: int) -> None:
    """Nobody watches."""


def _read_inventory(path: Path, spec: ModelSpec) -> Inventory:
    try:
        inventory = read_directory(path)
        check_tensors(spec, inventory.by_name)
    except CheckpointMissing as error:
        raise ModelNotFound(error.message) from error
    except PlanError as error:
        raise WeightsUnreadable(f"{path}: {error.message}") from error
    return inventory


def _fill(path: Path, wanted: list[TensorInfo], weights: Weights, on_progress: OnProgress) -> None:
    total, done = sum(tensor.size_bytes for tensor in wanted), 0
    on_progress(0, total)
    with ExitStack() as stack:
        files = {name: stack.enter_context((path / name).open("rb")) for name in {one.file for one in wanted}}
        pool = stack.enter_context(ThreadPoolExecutor(_THREADS, "wisp-load"))
        jobs = [
            pool.submit(_copy, files[tensor.file], tensor, *rows, weights)
            for tensor in wanted
            for rows in _pieces(tensor)
        ]
        stack.callback(pool.shutdown, cancel_futures=True)
        for job in jobs:
            done += job.result()
            on_progress(done, total)


def _pieces(tensor: TensorInfo) -> Iterator[tuple[int, int]]:
    """Yield (first row, rows) that are worth one read; all but the last are multiples of 64 rows."""
    row_bytes = max(1, tensor.size_bytes // tensor.shape[0])
    step = max(64, _PIECE_BYTES // row_bytes // 64 * 64)
    for first in range(0, tensor.shape[0], step):
        yield first, min(step, tensor.shape[0] - first)


def _copy(file: BinaryIO, tensor: TensorInfo, first: int, rows: int, weights: Weights) -> int:
    """Read some rows of a tensor, widen them, and store them; return how many bytes that was."""
    stored = np.empty((rows, *tensor.shape[1:]), _STORED[tensor.dtype])
    row_bytes = stored.nbytes // rows
    got = os.preadv(file.fileno(), [stored.data.cast("B")], tensor.start + first * row_bytes)
    if got != stored.nbytes:
        raise WeightsUnreadable(
            f"{file.name}: ended while {tensor.name} was read; something else is writing to it. "
            "Wait for that to finish, or download the model again."
        )
    weights.store(tensor.name, first, _widen(stored, tensor.dtype))
    return got


def _widen(stored: Array, dtype: str) -> Array:
    """Return float32 values; a bf16 number is the upper half of the float32 of the same value."""
    if dtype == "BF16":
        wide: Array = np.left_shift(stored, 16, dtype=np.uint32).view(np.float32)
        return wide
    return stored.astype(np.float32, copy=False)
