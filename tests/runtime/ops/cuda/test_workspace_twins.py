"""What the ledger counts of a GPU's scratch memory is what the runtime's parts say of themselves."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from wisp_plan.memory import buffers, ledger
from wisp_plan.memory.ledger import LedgerOptions
from wisp_plan.presets import shape_spec
from wisp_runtime.config import STEP_SEQUENCES
from wisp_runtime.engine.execution.batch_buckets import buckets
from wisp_runtime.engine.execution.packing import Shape, size_bytes
from wisp_runtime.engine.execution.sampler import MOST_COUNTED
from wisp_runtime.ops.cuda.attention import prefill_plan
from wisp_runtime.ops.cuda.device import manifest
from wisp_runtime.ops.cuda.gemm import linear_plan
from wisp_runtime.ops.protocol.persistent import StepLayer
from wisp_runtime.server.parsing.requests import MAX_BIASES

CUDA = Path(linear_plan.__file__).parents[1]
KERNELS = Path(__file__).parents[4] / "kernels"


def constants(module: str) -> dict[str, object]:
    """Return the constants at the top of a module that cannot be imported without CuPy."""
    found: dict[str, object] = {}
    for node in ast.parse(next(CUDA.rglob(f"{module}.py")).read_text()).body:
        if isinstance(node, ast.Assign):
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                continue
            target = node.targets[0]
            names = [one.id for one in target.elts] if isinstance(target, ast.Tuple) else [target.id]
            found |= zip(names, value if len(names) > 1 else [value], strict=True)
    return found


def test_matrix_products_have_the_tiles_that_are_counted():
    assert linear_plan.UNIT_ROWS == buffers.PRODUCT_ROWS
    assert linear_plan.TILE_TOKENS == buffers.PRODUCT_TOKENS


def test_decode_attention_keeps_as_many_parts_as_are_counted():
    assert constants("decode_attention")["_MOST_PART_ROWS"] == buffers.DECODE_PART_ROWS


def test_a_step_in_one_launch_has_the_buffers_that_are_counted():
    found = constants("decode_step_arguments")
    assert found["WIDTHS"] == buffers.STEP_WIDTHS
    assert (found["MOST_PARTS"], found["MOST_BLOCKS"]) == (buffers.STEP_PARTS, buffers.STEP_BLOCKS)
    header = (KERNELS / "hopper/persistent/decode_step_model.cuh").read_text()
    for constant, value in (("kMostParts", buffers.STEP_PARTS), ("kMostBlocks", buffers.STEP_BLOCKS)):
        assert f"constexpr int {constant} = {value};" in header
    assert len(fields(StepLayer)) == buffers.STEP_POINTERS


def test_deterministic_mode_refuses_more_sequences_than_a_step_in_one_launch_has():
    assert buffers.STEP_WIDTHS[-1] == STEP_SEQUENCES


def test_a_row_never_counts_and_biases_more_tokens_than_there_is_room_for():
    assert constants("sampler")["_ENTRIES_A_ROW"] >= MOST_COUNTED + MAX_BIASES


def test_prefill_attention_has_the_tiles_that_are_counted():
    assert tuple(one.head_size for one in prefill_plan.WGMMA) == buffers.PREFILL_HEAD_SIZES
    assert max(max(one.rows) for one in prefill_plan.WGMMA) == buffers.PREFILL_ROWS
    assert prefill_plan.FIELDS * 4 == buffers.PREFILL_ITEM_BYTES


@pytest.mark.parametrize("settings", [(512, 32), (8192, 1), (64, 64), (105, 55)])
def test_prefill_attention_has_as_many_tiles_as_are_counted(settings):
    spec, (tokens, sequences) = shape_spec("llama-3-8b"), settings
    tiles = prefill_plan.most_items(tokens, sequences, 128, group=4, kv_heads=8, workers=132)
    options = LedgerOptions("cuda", "bf16", "bf16", 1, 16, 8192, sequences, tokens, 0, 132)
    parts = 132 * 128 * 130 * 4 + 768
    counted = buffers.prefill_attention(spec, options.step) - parts
    assert 0 <= counted - tiles * prefill_plan.FIELDS * 4 < 256


def test_sampling_has_the_buffers_that_are_counted():
    found = constants("sampler")
    shared = manifest.constants()
    assert shared["sampling_bins"] == buffers.SAMPLING_BINS
    assert shared["sampling_candidates"] == buffers.SAMPLING_CANDIDATES
    assert found["_ENTRIES_A_ROW"] == buffers.SAMPLING_ENTRIES_A_ROW
    assert found["_HEADER_BYTES"] == buffers.SAMPLING_HEADER_BYTES


@pytest.mark.parametrize(("tokens", "rows"), [(512, 32), (64, 1), (8192, 256)])
def test_the_inputs_of_a_step_take_what_is_counted(tokens, rows):
    options = LedgerOptions("cuda", "bf16", "bf16", 1, 16, 8192, rows, tokens)
    parameters = buffers.SAMPLING_HEADER_BYTES + rows * buffers.SAMPLING_ROW_BYTES
    real = parameters + size_bytes(Shape(tokens, rows, rows)) + rows * 512 * np.dtype(np.int32).itemsize
    assert 0 <= buffers.inputs(options.step) - real <= 512


def test_graphs_are_counted_for_every_size_that_decode_steps_are_rounded_to():
    assert all(len(buckets(rows)) == ledger.decode_sizes(rows) for rows in range(1, 600))
