"""Scratch memory of a step: buffers with names, each allocated once, none after :meth:`Workspace.seal`.

An op's buffers are declared in :mod:`wisp_plan.memory.buffers`, which the ledger counts too.
:meth:`Workspace.reserve` allocates them; a step sees the part of each that it needs. Before the seal a buffer
that must grow is replaced, so views of it are stale: take them anew each step, which costs a dictionary's
look-up. CUDA graphs hold pointers, so they are captured after the seal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cupy as cp
import ml_dtypes  # noqa: F401 (gives NumPy the name bfloat16)
import numpy as np

from wisp_plan.memory.buffers.buffer import ALIGNMENT_BYTES, Buffer
from wisp_runtime.batch import Array
from wisp_runtime.errors import WorkspaceExhausted
from wisp_runtime.ops.cuda.device.driver import translate

_MAX_VIEWS = 8192  # shapes differ with the tokens of a step; past this many the cache of views starts anew


@dataclass(slots=True)
class _Buffer:
    memory: Array  # [bytes] uint8
    is_zeroed: bool


class Workspace:
    """Named buffers on one GPU. Not for several threads."""

    def __init__(self) -> None:
        self.is_sealed = False
        self._buffers: dict[str, _Buffer] = {}
        self._views: dict[tuple[str, tuple[int, ...], Any], Array] = {}

    @property
    def bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.memory.nbytes for buffer in self._buffers.values())

    def reserve(self, buffers: Iterable[Buffer]) -> None:
        """Allocate ``buffers``, each as it is declared.

        Raises:
            GpuOutOfMemory: there is less memory than they need.
        """
        for buffer in buffers:
            self.view(buffer)

    def view(self, buffer: Buffer) -> Array:
        """Return a declared buffer, whole: ``[buffer.shape]`` of ``buffer.dtype``."""
        name, shape, dtype = buffer.name, buffer.shape, buffer.dtype
        view = self._views.get((name, shape, dtype))
        return self._view(name, shape, dtype, buffer.is_zeroed) if view is None else view

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return buffer ``name`` as an array ``shape`` of ``dtype``, with the contents that were left there.

        The same name is the same memory: two arrays that live at once need two names.

        Raises:
            WorkspaceExhausted: the buffer is too small and the workspace is sealed.
            GpuOutOfMemory: it could not be allocated.
        """
        view = self._views.get((name, shape, dtype))
        return self._view(name, shape, dtype, False) if view is None else view

    def zeroed(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return buffer ``name`` as :meth:`array` does; it was zeroed when it was allocated, and never since.

        For counters that each kernel leaves at zero.
        """
        view = self._views.get((name, shape, dtype))
        return self._view(name, shape, dtype, True) if view is None else view

    def seal(self) -> None:
        """Allow no allocation from here on."""
        self.is_sealed = True

    def report(self) -> list[dict[str, object]]:
        """Return a row a buffer, largest first, as ``/state`` shows them."""
        rows = sorted((-buffer.memory.nbytes, name) for name, buffer in self._buffers.items())
        return [{"name": name, "bytes": -size} for size, name in rows]

    def _view(self, name: str, shape: tuple[int, ...], dtype: Any, is_zeroed: bool) -> Array:
        needed_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.memory.nbytes < needed_bytes:
            buffer = self._grow(name, needed_bytes, is_zeroed)
        assert buffer.is_zeroed == is_zeroed, f"{name} was allocated with is_zeroed={buffer.is_zeroed}"
        if len(self._views) >= _MAX_VIEWS:
            self._views.clear()
        view = cp.ndarray(shape, np.dtype(dtype), memptr=buffer.memory.data)
        self._views[name, shape, dtype] = view
        return view

    def _grow(self, name: str, needed_bytes: int, is_zeroed: bool) -> _Buffer:
        if self.is_sealed:
            had = self._buffers[name].memory.nbytes if name in self._buffers else 0
            raise WorkspaceExhausted(
                f"the workspace's buffer {name} has {had} bytes, a step needs {needed_bytes}. Nothing is "
                "allocated after start-up: declare it in wisp_plan/memory/buffers. This is a bug of ours."
            )
        size_bytes = -(-max(needed_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        with translate(f"allocating {size_bytes} bytes for the workspace's buffer {name}"):
            cp.cuda.get_current_stream().synchronize()  # kernels may still use what is replaced
            self._forget(name)
            memory = cp.empty(size_bytes, np.uint8)
            if is_zeroed:
                memory.data.memset_async(0, size_bytes)
        self._buffers[name] = _Buffer(memory, is_zeroed)
        return self._buffers[name]

    def _forget(self, name: str) -> None:
        self._buffers.pop(name, None)
        self._views = {key: view for key, view in self._views.items() if key[0] != name}
