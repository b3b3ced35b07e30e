"""Sizes of buffers that CUDA sources, or the layout of a step's inputs, state as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from wisp_plan.memory.buffers import attention, persistent, sampling
from wisp_plan.memory.buffers.inputs import packed_bytes
from wisp_runtime.engine.execution.packing import Shape, size_bytes
from wisp_runtime.engine.scheduling.sequence import MAX_COUNTED
from wisp_runtime.ops.cuda.attention import prefill_plan
from wisp_runtime.ops.cuda.device import manifest
from wisp_runtime.ops.cuda.persistent.arguments import DELTA_WEIGHTS, LAYER_WEIGHTS
from wisp_runtime.server.parsing.generation_request import MAX_BIASES

KERNELS = Path(__file__).parents[4] / "kernels"


def test_the_persistent_kernel_has_as_many_blocks_and_partial_results():
    header = (KERNELS / "hopper/persistent/model.cuh").read_text()
    for constant, value in (("kMaxSplits", persistent.MAX_PARTIALS), ("kMaxBlocks", persistent.MAX_BLOCKS)):
        assert f"constexpr int {constant} = {value};" in header
    assert len(LAYER_WEIGHTS) + 3 == persistent.LAYER_WORDS  # scales, the router, the address of a DeltaNet's
    assert len(DELTA_WEIGHTS) == persistent.DELTA_WORDS


def test_sampling_kernels_have_as_many_bins_and_candidates():
    shared = manifest.constants()
    assert (shared["sampling_bins"], shared["sampling_candidates"]) == (sampling.BINS, sampling.CANDIDATES)


def test_a_row_never_counts_and_biases_more_tokens_than_its_entries():
    assert sampling.ENTRIES_A_ROW >= MAX_COUNTED + MAX_BIASES


def test_prefill_tiles_that_the_ledger_counts_fit_a_hopper():
    assert prefill_plan.largest_tiles(prefill_plan.WGMMA, 232448) == attention.HOPPER_PREFILL_TILES


@pytest.mark.parametrize("sizes", [(512, 32, 1, False), (64, 1, 3, True), (8192, 256, 2, False)], ids=str)
def test_the_packed_arrays_of_a_step_fit_their_buffer(sizes):
    tokens, rows, groups, has_states = sizes
    declared = packed_bytes(tokens, rows, groups, has_states=has_states)
    assert 0 <= declared - size_bytes(Shape(tokens, rows, rows, groups, has_states)) <= 128
