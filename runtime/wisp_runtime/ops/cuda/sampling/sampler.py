"""Choose the next token of each row of logits on the GPU, without waiting for the host.

The kernels' memory has fixed addresses and sizes, so that a step can be captured as a graph. A step's
parameters are one small buffer (:meth:`Sampler.fill`); penalties, biases, masks and the tokens that
repetition penalties count, which few steps have, are copied to arrays of the sampler by ``fill`` itself. The
reference implementation is :mod:`wisp_runtime.ops.reference.sampling`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np

from wisp_plan.memory.alternatives import MAX_ALTERNATIVES
from wisp_plan.memory.buffers.buffer import Buffer
from wisp_plan.memory.buffers.sampling import (
    ENTRY_BYTES,
    HEADER_BYTES,
    ROW_BYTES,
    max_entries,
    sampling_rows,
)
from wisp_runtime.batch import Array, SamplingBatch
from wisp_runtime.errors import ShapeError
from wisp_runtime.ops.cuda.device.checks import remember, require, require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu
from wisp_runtime.ops.cuda.device.manifest import constants

MAX_VOCAB = 1 << constants()["sampling_token_bits"]
_THREADS = constants()["sampling_threads"]  # all kernels but the last; a thread takes four tokens at a time
_LAST_THREADS = 128
_ROW = np.dtype(
    [
        *(("temperature", "f4"), ("top_k", "i4"), ("top_p", "f4"), ("min_p", "f4")),
        *(("seeds", "u8"), ("steps", "i8"), ("presence_penalty", "f4"), ("frequency_penalty", "f4")),
        *(("count_start", "i4"), ("count_stop", "i4"), ("bias_start", "i4"), ("bias_stop", "i4")),
        *(("mask_row", "i4"), ("repetition_penalty", "f4")),
    ]
)
assert _ROW.itemsize == ROW_BYTES, "a row of parameters is as long as the ledger counts"
_PLAIN = (*(_ROW.names or ())[:8], "repetition_penalty")  # fields of SamplingBatch under the same names


class _Arena(ctypes.Structure):
    """``Arena`` of ``kernels/include/sampling/sampling.cuh``: addresses of the device's arrays."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in ("entries", "masks", "seen", "adjusted", "argmax", "partials", "masses")
        ),
        *(
            (name, ctypes.c_uint64)
            for name in ("totals", "candidates", "counts", "candidate_count", "arrived")
        ),
        *((name, ctypes.c_uint64) for name in ("tokens", "is_sound", "logprobs", "top_ids", "top_logprobs")),
        *((name, ctypes.c_int32) for name in ("vocab", "max_rows")),
    ]


@dataclass(frozen=True, slots=True)
class SampledArrays:
    """Sampled tokens on the device: views of fixed buffers, which the next launch overwrites.

    Attributes:
        tokens: ``[R]`` int32; the start of :attr:`Sampler.sampled_tokens`.
        is_sound: ``[R]`` uint8, 1 if the row's chosen logit is finite; where 0, the token is undefined.
        logprobs: ``[R]`` float32 of the chosen tokens, by the raw logits; None without log-probabilities.
        top_ids: ``[R, K]`` int32, best first, the lower id first among equals; or None.
        top_logprobs: ``[R, K]`` float32; or None.
    """

    tokens: Array
    is_sound: Array
    logprobs: Array | None = None
    top_ids: Array | None = None
    top_logprobs: Array | None = None


@dataclass(frozen=True, slots=True)
class HostParameters:
    """A step's parameters in host memory.

    Attributes:
        live: ``[1]`` int32, valid rows; those after them are padding.
        columns: a ``[max_rows]`` view for each field of a row.
    """

    live: Array
    columns: dict[str, Array]


@dataclass(frozen=True, slots=True)
class _Plan:
    arena: _Arena
    grid: tuple[int, int]
    rows: np.int32
    report: np.int32
    out: SampledArrays


class _DoubleBuffer:
    """A device array that some steps write, through two page-locked buffers in turn."""

    def __init__(self, device: Gpu, buffer: Buffer) -> None:
        self.device, self.buffer, self.size_bytes = device, buffer, buffer.shape[0]
        self._halves: list[tuple[Array, Any]] = []

    def array(self) -> Array:
        """Return the device's memory, ``[size_bytes]`` uint8."""
        return self.device.workspace.view(self.buffer)

    def host(self, size_bytes: int) -> Array:
        """Return ``[size_bytes]`` uint8 of host memory whose last copy is over; :meth:`send` copies it."""
        if not self._halves or self._halves[0][0].nbytes < size_bytes:
            for _, copied in self._halves:
                copied.synchronize()
            capacity = min(self.size_bytes, 1 << (size_bytes - 1).bit_length())
            self._halves = [_page_locked(capacity) for _ in range(2)]
        self._halves.reverse()
        memory, copied = self._halves[0]
        copied.synchronize()
        return memory[:size_bytes]

    def send(self, size_bytes: int) -> None:
        """Copy the contents of :meth:`host` to the device, after all earlier launches."""
        memory, copied = self._halves[0]
        stream = self.device.stream
        source = memory.__array_interface__["data"][0]
        kind = cp.cuda.runtime.memcpyHostToDevice
        cp.cuda.runtime.memcpyAsync(self.array().data.ptr, source, size_bytes, kind, stream.ptr)
        copied.record(stream)


class Sampler:
    """Samples tokens from logits.

    Args:
        device: the GPU.
        vocab: V, at most 262,144.
        max_rows: R of the largest step.
        entries: penalties and biases of all rows of a step together, at most; None is 4,096 a row.

    Attributes:
        parameter_bytes: size of a step's parameters.
        sampled_tokens: ``[max_rows]`` int32 on the device: row r's token, for the next step's embedding.
    """

    def __init__(self, device: Gpu, vocab: int, max_rows: int, *, entries: int | None = None) -> None:
        require_true(0 < vocab <= MAX_VOCAB, f"sampling: V is {vocab}, must be 1..{MAX_VOCAB}")
        self.vocab, self.max_rows = vocab, max_rows
        self.parameter_bytes = HEADER_BYTES + max_rows * _ROW.itemsize
        self._device, self._mask_words = device, -(-vocab // 32)
        capacity = max_entries(vocab, max_rows) if entries is None else entries
        buffers = sampling_rows(vocab, max_rows, capacity, device.sm_count)
        self._buffers = {buffer.name.removeprefix("sampling."): buffer for buffer in buffers}
        self._entries = _DoubleBuffer(device, self._buffers["entries"])
        self._masks = _DoubleBuffer(device, self._buffers["masks"])
        self._seen = _DoubleBuffer(device, self._buffers["seen"])
        self._argmax, self._histogram, self._token, self._logprobs = (
            device.kernels.get(f"sample_{name}") for name in ("argmax", "histogram", "token", "logprobs")
        )
        self._plans: dict[object, _Plan] = {}

    @property
    def sampled_tokens(self) -> Array:
        """Return the tokens of the last launch."""
        return self._device.workspace.view(self._buffers["tokens"])

    def reserve(self) -> None:
        """Allocate the sampler's buffers, before the workspace is sealed."""
        self._device.workspace.reserve(self._buffers.values())

    def host_view(self, memory: Array) -> HostParameters:
        """View ``[parameter_bytes]`` uint8 of host memory as parameters."""
        rows = memory[HEADER_BYTES : self.parameter_bytes].view(_ROW)
        return HostParameters(memory[:4].view(np.int32), {name: rows[name] for name in _ROW.names or ()})

    def fill(self, view: HostParameters, sampling: SamplingBatch) -> None:
        """Write ``sampling`` into a view of :meth:`host_view`; enqueue the copies of lists and bitmasks.

        The view must be uploaded before the launch that it is for, and no other ``fill`` comes in between.

        Raises:
            ShapeError: too many rows, or penalties and biases.
        """
        rows = len(sampling.temperature)
        if rows > self.max_rows:
            raise ShapeError(f"sampling: {rows} rows, this sampler has {self.max_rows}")
        columns = view.columns
        view.live[0] = rows
        for name in _PLAIN:
            columns[name][:rows] = getattr(sampling, name)
        counted = len(sampling.count_ids)
        columns["count_start"][:rows] = sampling.count_starts[:-1]
        columns["count_stop"][:rows] = sampling.count_starts[1:]
        columns["bias_start"][:rows] = sampling.bias_starts[:-1] + np.int32(counted)
        columns["bias_stop"][:rows] = sampling.bias_starts[1:] + np.int32(counted)
        columns["mask_row"][:rows] = -1 if sampling.bitmask is None else np.arange(rows, dtype=np.int32)
        if counted or len(sampling.bias_ids):
            self._send_entries(sampling)
        for bits, buffer in ((sampling.bitmask, self._masks), (sampling.seen, self._seen)):
            if bits is not None:
                size = 4 * rows * self._mask_words
                buffer.host(size).view(np.uint32)[:] = bits.ravel()
                buffer.send(size)

    def launch(
        self, logits: Array, rows: int, parameters: Array, *, logprobs: int, greedy: bool = False
    ) -> SampledArrays:
        """Choose a token for each live row of ``parameters``; the results of later rows stay as they are.

        Args:
            logits: ``[rows, V]`` float32; left as they are.
            rows: R, padding included.
            parameters: ``[parameter_bytes]`` uint8 of the device, 16-byte aligned, as :meth:`fill` wrote it.
            logprobs: alternatives to report, at most ``MAX_ALTERNATIVES``; -1 computes no log-probabilities.
            greedy: whether every row's temperature is 0; saves two kernels that do nothing.

        Raises:
            ShapeError: an array differs from the above.
        """
        key = logits.shape, rows, parameters.shape, logprobs
        plan = self._plans.get(key)
        if plan is None:
            plan = remember(self._plans, key, self._plan(logits, rows, parameters, logprobs))
        arguments = plan.arena, logits, parameters, plan.report
        self._argmax.launch(plan.grid, _THREADS, *arguments)
        if logprobs >= 0 or not greedy:
            self._histogram.launch(plan.grid, _THREADS, *arguments)
            self._token.launch(plan.grid, _THREADS, *arguments)
        if logprobs >= 0:
            grid = (-(-rows // _LAST_THREADS),)
            self._logprobs.launch(grid, _LAST_THREADS, plan.arena, logits, parameters, plan.rows, plan.report)
        return plan.out

    def _send_entries(self, sampling: SamplingBatch) -> None:
        counted = len(sampling.count_ids)
        size = (counted + len(sampling.bias_ids)) * ENTRY_BYTES
        if size > self._entries.size_bytes:
            raise ShapeError(
                f"sampling: {size // ENTRY_BYTES} penalties and biases in a step, more than "
                f"{self._entries.size_bytes // ENTRY_BYTES}. Make the sampler with more entries."
            )
        entries = self._entries.host(size).view(np.int32).reshape(-1, 2)
        entries[:counted, 0], entries[:counted, 1] = sampling.count_ids, sampling.counts
        entries[counted:, 0], entries[counted:, 1] = sampling.bias_ids, sampling.biases.view(np.int32)
        self._entries.send(size)

    def _plan(self, logits: Array, rows: int, parameters: Array, logprobs: int) -> _Plan:
        require("sampling", "logits", logits, (rows, self.vocab), np.float32)
        require("sampling", "parameters", parameters, (self.parameter_bytes,), np.uint8)
        require_true(0 < rows <= self.max_rows, f"sampling: {rows} rows, must be 1..{self.max_rows}")
        require_true(
            -1 <= logprobs <= MAX_ALTERNATIVES,
            f"sampling: {logprobs} alternatives, must be -1..{MAX_ALTERNATIVES}",
        )
        tasks = rows if logprobs < 0 else 2 * rows
        max_blocks = -(-self.vocab // (4 * _THREADS))  # a block has a group of four tokens for each thread
        blocks = max(1, min(2 * self._device.sm_count // tasks, max_blocks))
        array = self._device.workspace.array
        tokens, is_sound = self.sampled_tokens[:rows], array("sampling.is_sound", (rows,), np.uint8)
        out = SampledArrays(tokens, is_sound)
        if logprobs >= 0:
            shape = rows, min(logprobs, self.vocab)
            out = SampledArrays(
                tokens,
                is_sound,
                array("sampling.logprobs", (rows,), np.float32),
                array("sampling.top_ids", shape, np.int32),
                array("sampling.top_logprobs", shape, np.float32),
            )
        return _Plan(self._arena(), (blocks, tasks), np.int32(rows), np.int32(logprobs), out)

    def _arena(self) -> _Arena:
        arrays = {name: self._device.workspace.view(buffer) for name, buffer in self._buffers.items()}
        addresses = {name: array.data.ptr for name, array in arrays.items()}
        return _Arena(**addresses, vocab=self.vocab, max_rows=self.max_rows)


def _page_locked(size_bytes: int) -> tuple[Array, Any]:
    """Allocate ``[size_bytes]`` uint8 of host memory, and an event for its copies."""
    memory = np.frombuffer(cp.cuda.alloc_pinned_memory(size_bytes), np.uint8, size_bytes)
    return memory, cp.cuda.Event(block=True, disable_timing=True)
