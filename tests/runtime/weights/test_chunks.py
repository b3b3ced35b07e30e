"""Plan of a load: reads of tensors, their order, and the part of a read that is kept."""

from __future__ import annotations

import numpy as np
import pytest

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.spec.weight import WeightSource, WeightSpec, part_of, stacked
from wisp_runtime.ops.protocol.weights.upload import STORED
from wisp_runtime.weights.chunks import plan


def tensor(name, start, shape, file="a", dtype="BF16"):
    size = int(np.prod(shape)) * STORED[dtype].itemsize
    return TensorInfo(name, dtype, shape, start, start + size, file)


def full(info):
    role = "projection" if len(info.shape) == 2 else "norm"
    return WeightSpec(info.name, info.shape, stacked((info.name, info.shape)), role)


def plan_of(infos, chunk_bytes):
    return plan(map(full, infos), {info.name: info for info in infos}, chunk_bytes)


def test_chunks_come_in_the_order_of_the_files_and_cover_every_row_once():
    tensors = [
        tensor("late", 4000, (200, 16)),  # 32 bytes a row
        tensor("other", 0, (3, 8), file="b"),
        tensor("vector", 96, (1000,)),
        tensor("early", 0, (3, 16)),
    ]
    chunks = plan_of(tensors, 4200)  # 131 rows of "late": two blocks of 64
    assert [(chunk.tensor.name, chunk.first, chunk.rows) for chunk in chunks] == [
        ("early", 0, 3),
        ("vector", 0, 1000),
        ("late", 0, 128),
        ("late", 128, 72),
        ("other", 0, 3),
    ]
    assert [chunk.start for chunk in chunks] == [0, 96, 4000, 4000 + 128 * 32, 0]
    assert sum(chunk.size_bytes for chunk in chunks) == sum(info.size_bytes for info in tensors)


@pytest.mark.parametrize(("chunk_bytes", "rows"), [(4096, 64), (4095, 63), (64, 1), (10, 1), (1 << 20, 100)])
def test_a_chunk_holds_blocks_of_64_rows_or_what_fits(chunk_bytes, rows):
    chunks = plan_of([tensor("wide", 0, (100, 32))], chunk_bytes)
    assert chunks[0].rows == rows
    assert sum(chunk.rows for chunk in chunks) == 100


EXPERTS = np.arange(4 * 6 * 10, dtype=np.int32).reshape(4, 6, 10)


@pytest.mark.parametrize(
    ("slices", "at", "shape", "expected"),
    [
        # all experts, full
        ((range(4), range(6), range(10)), (0, 0, 0), (4, 6, 10), EXPERTS),
        # the second half of the experts, as one of two ranks has it
        ((range(2, 4), range(6), range(10)), (0, 0, 0), (2, 6, 10), EXPERTS[2:]),
        # rows of each expert: up above gate
        ((range(4), range(3, 6), range(10)), (0, 0, 0), (4, 3, 10), EXPERTS[:, 3:]),
        # every other row, as gate and up alternate in gpt-oss
        ((range(4), range(1, 6, 2), range(10)), (0, 0, 0), (4, 3, 10), EXPERTS[:, 1::2]),
        # columns of each expert, as a row-parallel rank has them
        ((range(4), range(6), range(5, 10)), (0, 0, 0), (4, 6, 5), EXPERTS[:, :, 5:]),
        # every third column of some rows
        ((range(1, 3), range(2, 6, 3), range(0, 10, 3)), (0, 0, 0), (2, 2, 4), EXPERTS[1:3, 2::3, ::3]),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [40, 100, 1 << 20])
def test_slices_on_any_axis_of_a_tensor_are_read(slices, at, shape, expected, chunk_bytes):
    info = tensor("experts", 16, EXPERTS.shape, dtype="I32")
    source = part_of("experts", EXPERTS.shape, slices, at)
    loaded = load([WeightSpec("w", shape, (source,), "projection")], {"experts": info}, chunk_bytes)
    np.testing.assert_array_equal(loaded["w"], expected)


def test_one_tensor_an_expert_fills_a_weight_of_all():
    shape = (6, 10)
    infos = {f"e{e}": tensor(f"e{e}", 16 + e * 240, shape, dtype="I32") for e in range(4)}
    sources = tuple(WeightSource(f"e{e}", shape, (range(6), range(10)), (e, 0, 0)) for e in range(4))
    loaded = load([WeightSpec("w", (4, 6, 10), sources, "projection")], infos, 100)
    np.testing.assert_array_equal(loaded["w"], EXPERTS)


def test_a_tensor_may_be_seen_in_another_shape():
    info = tensor("conv", 16, (24, 1, 10), dtype="I32")
    source = WeightSource("conv", (24, 1, 10), (range(12, 24), range(10)), (0, 0), view=(24, 10))
    loaded = load([WeightSpec("w", (12, 10), (source,), "parameter")], {"conv": info}, 100)
    np.testing.assert_array_equal(loaded["w"], EXPERTS.reshape(24, 10)[12:])


def load(weights, tensors, chunk_bytes):
    """Read weights of int32 as the loader does, out of a file of 16 zeros and then EXPERTS."""
    file = np.concatenate([np.zeros(16, np.uint8), EXPERTS.reshape(-1).view(np.uint8)])
    loaded = {weight.name: np.full(weight.shape, -1, np.int32) for weight in weights}
    for chunk in plan(weights, tensors, chunk_bytes):
        kept = chunk.select(file[chunk.start : chunk.start + chunk.size_bytes].copy())
        target = loaded[chunk.weight]
        inner = tuple(
            slice(first, first + count)
            for first, count in zip(chunk.at[-len(chunk.shape) :], chunk.shape, strict=True)
        )
        target[(*chunk.at[: -len(chunk.shape)], *inner)] = kept.view(np.int32).reshape(chunk.shape)
    return loaded
