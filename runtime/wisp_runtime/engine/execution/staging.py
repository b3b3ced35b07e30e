"""Enqueue the copies of a step: its inputs to the device, its results back. Nothing here waits for them.

The device may still be busy with step n when step n + 1 is prepared: its copies have yet to read n's inputs
from host memory, or to write n's results there. The rules that keep this right:

1. Host memory comes twice (:class:`PinnedBuffer`), for even steps and for odd ones. Before a step writes to
   its buffer, the last step that used it is waited for, results included (its event ``done``).
2. Device memory comes once, at fixed addresses. All copies and kernels run in order on one stream, so the
   inputs of step n + 1 arrive after step n, sampling included, has read its own.
3. Sampling parameters that count awaited tokens are written and uploaded apart from the other inputs, between
   the forward pass and the sampling of their step. That writes to the same pinned buffer, to a part that no
   earlier copy of this step reads.
4. A step is sampled before the next one is staged, so no two steps ever use one pinned buffer, and parameters
   (the sampler's own uploads of penalties, biases and masks too) reach the device in the order of the steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wisp_plan.memory.alternatives import MAX_ALTERNATIVES
from wisp_plan.memory.batch_buckets import bucket_for, buckets
from wisp_plan.memory.buffers.inputs import block_tables, packed_bytes
from wisp_runtime.batch import Array, Batch, Sampled, StepKind
from wisp_runtime.engine.cache.block_table import BlockTables
from wisp_runtime.engine.execution.packing import (
    Arrays,
    Shape,
    batch_of,
    fill,
    only_decodes,
    shape_of,
    size_bytes,
    view_arrays,
    with_fields,
)
from wisp_runtime.engine.execution.sampler import SamplingRows, has_pending_counts
from wisp_runtime.engine.scheduling.plan import Limits, Plan
from wisp_runtime.ops.protocol.sampling import SampledArrays, Sampler
from wisp_runtime.ops.protocol.stream import Stream

_RESULTS = ("tokens", "is_sound", "logprobs", "top_ids", "top_logprobs")
_RESULT_BYTES = 12 + 8 * MAX_ALTERNATIVES  # result of a row
_ALIGNMENT_BYTES = 16


@dataclass(frozen=True, slots=True)
class StagedSampling:
    """Sampling parameters that are on their way to the device.

    Attributes:
        parameters: memory of the device, as its sampler laid it out.
        logprobs: alternatives that are computed per row; -1 computes no log-probabilities.
        greedy: whether every row takes its best token, and none reports log-probabilities.
    """

    parameters: Array
    logprobs: int
    greedy: bool


@dataclass(frozen=True, slots=True)
class StagedStep:
    """A step whose inputs are on their way to the device.

    Attributes:
        batch: arrays of the device.
        rows: rows of logits, padding included.
        valid_rows: rows whose tokens are sampled for a sequence: the first ones; the others are padding.
        bucket: sequences, padding included, of a step that only decodes; else None.
        is_long: whether a step that only decodes reads more of the cache than the persistent kernel is good
            for.
        pinned: host memory of the step.
        sampling: sampling parameters; None while they await the tokens of the step before.
    """

    batch: Batch
    rows: int
    valid_rows: int
    bucket: int | None
    is_long: bool
    pinned: PinnedBuffer
    sampling: StagedSampling | None


class PinnedBuffer:
    """Page-locked memory of a step: inputs, block tables and results."""

    def __init__(self, stream: Stream, sampler: Sampler, inputs_bytes: int, tables: tuple[int, ...]) -> None:
        self.inputs = stream.host_memory(sampler.parameter_bytes + inputs_bytes)
        self.parameters = sampler.host_view(self.inputs[: sampler.parameter_bytes])
        self.arrays = self.inputs[sampler.parameter_bytes :]
        self.tables = stream.host_memory(4 * math.prod(tables)).view(np.int32).reshape(tables)
        self.results = stream.host_memory(_RESULT_BYTES * tables[1] + _ALIGNMENT_BYTES * len(_RESULTS))
        self.done = stream.event()
        self.views: dict[int, Arrays] = {}  # by bucket


class Staging:
    """Memory that steps pass through.

    Args:
        stream: stream of the device.
        limits: bounds of a step.
        sampler: layout of sampling parameters.
    """

    def __init__(self, stream: Stream, limits: Limits, sampler: Sampler) -> None:
        self._stream, self._limits, self._sampler = stream, limits, sampler
        self._buckets = buckets(limits.max_running)
        rows = limits.max_running
        self._groups, self._has_states = len(limits.cache.pools), bool(limits.cache.states)
        tables = block_tables(limits.step, self._groups).shape
        inputs_bytes = packed_bytes(limits.max_step_tokens, rows, self._groups, has_states=self._has_states)
        assert size_bytes(self._shape(limits.max_step_tokens, rows, rows)) <= inputs_bytes
        self._pinned = [PinnedBuffer(stream, sampler, inputs_bytes, tables) for _ in range(2)]
        self._inputs = stream.device_memory(sampler.parameter_bytes + inputs_bytes)
        self._tables = stream.device_memory(4 * math.prod(tables)).view(np.int32).reshape(tables)
        _, rows, width = tables
        self._host_tables = [BlockTables(rows, width, group) for group in range(self._groups)]
        self._sampling = SamplingRows()
        self._decodes: dict[tuple[int, bool], Batch] = {}

    def stage(self, plan: Plan, max_context_tokens: int | None = None) -> StagedStep:
        """Write the inputs of a step and enqueue their copies; its sampling parameters too if they are known.

        Args:
            plan: plan of the step.
            max_context_tokens: tokens of context of a decode step that is not long; None: no step is long.
        """
        self._pinned.reverse()
        pinned = self._pinned[0]
        pinned.done.synchronize()
        bucket, is_long = None, False
        if only_decodes(plan):
            bucket = bucket_for(len(plan), self._buckets)
            shape = self._shape(bucket, bucket, bucket)
            if max_context_tokens is not None:
                is_long = sum(chunk.start + 1 for chunk in plan) > max_context_tokens
        else:
            shape = shape_of(plan)
            shape = shape._replace(rows=max(shape.rows, 1))  # no kernel is launched for no row
        self._stage_tables(plan, pinned)
        arrays = self._host_arrays(pinned, shape, bucket)
        fill(arrays, plan, [tables.table for tables in self._host_tables], self._limits.block_tokens)
        sampling = None if has_pending_counts(plan) else self._fill_parameters(plan, pinned)
        first, end = self._sampler.parameter_bytes, self._sampler.parameter_bytes + size_bytes(shape)
        if sampling is not None:
            first = 0  # both in one copy
        self._stream.upload(self._inputs[first:end], pinned.inputs[first:end])
        return StagedStep(
            batch=self._batch(plan, shape, bucket, is_long),
            rows=shape.rows,
            valid_rows=sum([chunk.logits for chunk in plan]),
            bucket=bucket,
            is_long=is_long,
            pinned=pinned,
            sampling=sampling,
        )

    def stage_sampling(self, plan: Plan, step: StagedStep) -> StagedSampling:
        """Write the sampling parameters of ``plan``, known by now, and enqueue their copy."""
        sampling = self._fill_parameters(plan, step.pinned)
        end = self._sampler.parameter_bytes
        self._stream.upload(self._inputs[:end], step.pinned.inputs[:end])
        return sampling

    def _fill_parameters(self, plan: Plan, pinned: PinnedBuffer) -> StagedSampling:
        sampling = self._sampling.batch(plan)
        self._sampler.fill(pinned.parameters, sampling)
        return StagedSampling(
            parameters=self._inputs[: self._sampler.parameter_bytes],
            logprobs=-1 if sampling.logprobs < 0 else MAX_ALTERNATIVES,
            greedy=sampling.logprobs < 0 and not sampling.temperature.any(),
        )

    def fetch(self, step: StagedStep, sampled: SampledArrays) -> tuple[Sampled, Array]:
        """Enqueue the copies of a step's results; return where its valid rows and their soundness will be."""
        results: list[Array | None] = []
        place = 0
        for name in _RESULTS:
            array = getattr(sampled, name)
            if array is None:
                results.append(None)
                continue
            host = step.pinned.results[place : place + array.nbytes].view(array.dtype).reshape(array.shape)
            self._stream.download(host, array)
            place += -(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            results.append(host[: step.valid_rows])
        tokens, is_sound, *reported = results
        return Sampled(tokens, *reported), is_sound

    def _stage_tables(self, plan: Plan, pinned: PinnedBuffer) -> None:
        """Enqueue copies of the rows of block tables that differ from the last step's."""
        for group, tables in enumerate(self._host_tables):
            if changed := tables.update(plan):
                pinned.tables[group][changed] = tables.table[changed]
                self._stream.upload_rows(self._tables[group][changed], pinned.tables[group][changed])

    def _shape(self, tokens: int, sequences: int, rows: int) -> Shape:
        return Shape(tokens, sequences, rows, self._groups, self._has_states)

    def _host_arrays(self, pinned: PinnedBuffer, shape: Shape, bucket: int | None) -> Arrays:
        if bucket is None:
            return view_arrays(pinned.arrays, shape)
        if bucket not in pinned.views:
            pinned.views[bucket] = view_arrays(pinned.arrays, shape)
        return pinned.views[bucket]

    def _batch(self, plan: Plan, shape: Shape, bucket: int | None, is_long: bool) -> Batch:
        """Return the arrays on the device; a bucket's are always the same, so that a graph can be
        captured."""
        known = self._decodes.get((bucket or 0, is_long))
        if known is not None:
            return known
        arrays = view_arrays(self._inputs[self._sampler.parameter_bytes :], shape)
        tables = [self._tables[group, : shape.sequences] for group in range(self._groups)]
        batch = batch_of(arrays, tables, plan)
        if bucket is None and self._limits.separate_prefill_decode:
            return with_fields(batch, kind=StepKind.PREFILL)
        if bucket is not None:
            # A captured graph serves every context of its kind, long or not.
            batch = self._decodes[bucket, is_long] = with_fields(
                batch,
                query_starts_host=tuple(range(bucket + 1)),
                context_lengths_host=(self._limits.max_context if is_long else 1,) * bucket,
            )
        return batch
