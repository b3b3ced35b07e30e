"""Packing of quantized rows, on the emulated GPU, against NumPy; and its report of numbers that are none."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from emulated_kernel import KERNELS, Emulated, needs_compiler
from quantized_matrix import quantized_matrix

from wisp_plan.quantization.packed_format import EXPERT_FORMATS, PACKED_FORMATS, PackedFormat
from wisp_runtime.ops.cuda.weights.quantized_arguments import PackArguments
from wisp_runtime.ops.reference.quantized_packing import pack_quantized

pytestmark = needs_compiler
THREADS, STEP = 256, 16
ROWS, COLUMNS = 80, 384
PACKED = PACKED_FORMATS["fp8"]


@cache
def kernels() -> Emulated:
    return Emulated(KERNELS / "portable/weights/pack_quantized.cu", [])


def pack(
    codes: np.ndarray,
    row_scales: np.ndarray,
    not_finite: np.ndarray | None,
    packed: PackedFormat = PACKED,
    group_scales: np.ndarray | None = None,
) -> np.ndarray:
    """Launch a format's kernel over all rows; return the packed matrix."""
    block_section, row_section, size = packed.sections(ROWS, COLUMNS)
    storage = np.zeros(size, np.uint8)
    arguments = PackArguments(
        codes=codes.ctypes.data,
        row_scales=row_scales.ctypes.data,
        group_scales=None if group_scales is None else group_scales.ctypes.data,
        storage=storage.ctypes.data,
        not_finite=None if not_finite is None else not_finite.ctypes.data,
        block_section=block_section,
        row_section=row_section,
        rows=ROWS,
        columns=COLUMNS,
        column_tiles=packed.tiles(ROWS, COLUMNS)[1],
        group=packed.group,
        slice_bytes=packed.slice_bytes,
        group_scale_bytes=packed.group_scale_bytes,
    )
    blocks = -(-ROWS * COLUMNS // STEP // THREADS)
    entry = "pack_eight_bits" if packed.bits == 8 else f"pack_{packed.name}"
    kernels().launch(entry, [arguments], blocks=blocks, threads=THREADS, seed=1)
    return storage


@pytest.mark.parametrize(
    ("place", "code", "is_finite"),
    [
        ((0, 0), 0x7E, True),  # 448, the largest
        ((79, 383), 0xFE, True),
        ((0, 0), 0x7F, False),
        ((41, 198), 0xFF, False),
        ((79, 383), 0x7F, False),
    ],
)
def test_packing_reports_a_nan_among_its_codes(place, code, is_finite):
    matrix = quantized_matrix(PACKED, ROWS, COLUMNS)
    codes = _aligned(matrix.codes)
    codes[(codes & 0x7F) == 0x7F] = 0x7E
    codes[place] = code
    not_finite = np.zeros(1, np.int32)
    storage = pack(codes, matrix.row_scales, not_finite)
    matrix.codes[...] = codes
    np.testing.assert_array_equal(storage, pack_quantized(PACKED, matrix))
    assert not_finite.any() == (not is_finite)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp4_fields", "nvfp4"])
def test_rows_and_steps_that_share_a_word_are_packed_as_by_the_reference(name):
    packed = (PACKED_FORMATS | EXPERT_FORMATS)[name]
    matrix = quantized_matrix(packed, ROWS, COLUMNS)
    codes = _aligned(matrix.codes[:, ::2] | matrix.codes[:, 1::2] << 4)
    storage = pack(codes, matrix.row_scales, None, packed, matrix.group_scales)
    np.testing.assert_array_equal(storage, pack_quantized(packed, matrix))


def test_bytes_of_integers_are_not_looked_at():
    matrix = quantized_matrix(PACKED, ROWS, COLUMNS)
    matrix.codes[...] = 0xFF
    pack(_aligned(matrix.codes), matrix.row_scales, None)


def _aligned(codes: np.ndarray) -> np.ndarray:
    memory = np.zeros(codes.size + 16, np.uint8)
    view = memory[-memory.ctypes.data % 16 :][: codes.size].reshape(codes.shape)
    view[...] = codes
    return view
