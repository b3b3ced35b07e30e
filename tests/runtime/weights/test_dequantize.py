"""Quantized experts on a device that holds float32: each chunk of values meets the scales of its own rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from wisp_plan.checkpoint.directory import read_file
from wisp_plan.spec.weight import WeightSpec, part_of, stacked
from wisp_plan.weights.declaration import shard
from wisp_plan.weights.formats import FORMATS, VALUES, ScaleLayout, StoredPart, WeightFormat
from wisp_plan.weights.stored import as_stored
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.chunks import plan
from wisp_runtime.weights.reader import Files, WeightReader

EXPERTS, ROWS, COLUMNS = 3, 8, 32


def decode(values, parts):
    low_first = np.stack([values & 15, values >> 4], axis=-1).reshape(len(values), -1)
    return (low_first.astype(np.float32) - parts["zero_point"]) * parts["scale"]


INT4_GROUPS = WeightFormat(
    "int4-groups",
    4,
    ScaleLayout(1, 4, "f16"),
    has_zero_points=True,
    stored=(
        StoredPart(VALUES, "{weight}_packed", ("U8",), columns=2),
        StoredPart("scale", "{weight}_scale", ("F16",), columns=4),
        StoredPart("zero_point", "{weight}_zero_point", ("U8",), columns=4, dtype="U8"),
    ),
    decode=decode,
)
FP_BLOCKS = WeightFormat(
    "blocks",
    8,
    ScaleLayout(4, 8, "f32"),
    stored=(
        StoredPart(VALUES, "{weight}_packed", ("I8",)),
        StoredPart("scale", "{weight}_scale", ("F32",), rows=4, columns=8),
    ),
    decode=lambda values, parts: values * parts["scale"],
)
FP_TENSORS = replace(
    FP_BLOCKS,
    name="tensors",
    stored=(FP_BLOCKS.stored[0], StoredPart("scale", "{weight}_scale", ("F32",), rows=0, columns=0)),
)
RANDOM = np.random.default_rng(3)


def int4(shape):
    codes = RANDOM.integers(0, 16, shape).astype(np.uint8)
    groups = (*shape[:-1], shape[-1] // 4)
    scale, zero = RANDOM.random(groups).astype(np.float16), RANDOM.integers(0, 16, groups).astype(np.uint8)
    wide = [np.repeat(part.astype(np.float32), 4, axis=-1) for part in (scale, zero)]
    packed = codes[..., ::2] | codes[..., 1::2] << 4
    return {"packed": packed, "scale": scale, "zero_point": zero}, (codes - wide[1]) * wide[0]


def blocks(shape):
    values = RANDOM.integers(-9, 9, shape).astype(np.int8)
    scale = RANDOM.random((*shape[:-2], shape[-2] // 4, shape[-1] // 8)).astype(np.float32)
    return {"packed": values, "scale": scale}, values * scale.repeat(4, axis=-2).repeat(8, axis=-1)


@pytest.mark.parametrize(("weight_format", "quantize"), [(INT4_GROUPS, int4), (FP_BLOCKS, blocks)])
@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize(("axis", "rank", "ranks"), [(None, 0, 1), (1, 1, 2), (2, 0, 2)])
def test_experts_are_dequantized_as_they_are_read(
    tmp_path, monkeypatch, weight_format, quantize, is_fused, axis, rank, ranks
):
    monkeypatch.setitem(FORMATS, weight_format.name, weight_format)
    shape = (EXPERTS, ROWS, COLUMNS)
    stored, expected = quantize(shape)
    if is_fused:
        save_file({f"e_{part}": values for part, values in stored.items()}, tmp_path / "f.safetensors")
        sources = (part_of("e", shape, map(range, shape), (0, 0, 0)),)
    else:
        parts = {f"{e}_{part}": values[e].copy() for part, values in stored.items() for e in range(EXPERTS)}
        save_file(parts, tmp_path / "f.safetensors")
        sources = tuple(part_of(f"{e}", shape[1:], map(range, shape[1:]), (e, 0, 0)) for e in range(EXPERTS))
    declared = shard([WeightSpec("experts", shape, sources, "projection", shard_axis=axis)], rank, ranks)
    for matrix, values in zip(load(tmp_path, declared), share(expected, axis, rank, ranks), strict=True):
        np.testing.assert_array_equal(matrix, values.astype(np.float32))


def load(folder, declared):
    """Read the experts in small chunks; return their rows."""
    tensors = read_file(folder / "f.safetensors").by_name
    weights, ops = as_stored(declared, tensors), CpuOps(threads=1)
    held = Weights(ops, weights)
    chunks = plan(weights, tensors, 100)
    with (
        Files(folder, ["f.safetensors"]) as files,
        WeightReader(files, chunks, held, ops.uploader(0)) as reader,
    ):
        reader.wait(lambda *_: None)
    matrices = held["experts"]
    matrices = matrices if isinstance(matrices, tuple) else (matrices,)
    return [ops.embedding(np.arange(matrix.outputs), matrix) for matrix in matrices]


def share(values, axis, rank, ranks):
    return values if axis is None else np.split(values, ranks, axis=axis)[rank]


@pytest.mark.parametrize("rank", [0, 1])
def test_scales_of_whole_tensors_are_those_of_their_rows_where_tensors_are_stacked(
    tmp_path, monkeypatch, rank
):
    monkeypatch.setitem(FORMATS, FP_TENSORS.name, FP_TENSORS)
    values = {name: RANDOM.integers(-9, 9, (rows, 16)).astype(np.int8) for name, rows in (("q", 8), ("k", 4))}
    scales = {
        "q": np.array(0.5, np.float32),
        "k": np.array([0.25], np.float32),
    }  # both are written
    stored = {f"{name}_packed": rows for name, rows in values.items()}
    save_file(stored | {f"{name}_scale": scale for name, scale in scales.items()}, tmp_path / "f.safetensors")
    sources = stacked(*((name, rows.shape) for name, rows in values.items()))
    declared = shard([WeightSpec("experts", (12, 16), sources, "projection", shard_axis=0)], rank, 2)
    (rows,) = load(tmp_path, declared)
    halves = [np.split(values[name] * scales[name], 2)[rank] for name in "qk"]
    np.testing.assert_array_equal(rows, np.concatenate(halves))
