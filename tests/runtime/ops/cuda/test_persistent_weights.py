"""Weights of the persistent kernel: refused where one has a format that it does not read; on a fake CuPy."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "emulator"))
from emulated_gpu import imported

from wisp_plan.presets import shape_spec
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.stored_presets import stored_as
from wisp_plan.weights.held import held_weights
from wisp_runtime.errors import KernelsMissing

SPEC = replace(shape_spec("qwen3.8-27b"), layers=shape_spec("qwen3.8-27b").layers[:4])
BLOCK = PACKED_FORMATS["fp8_block"]


@pytest.fixture(scope="module")
def modules():
    with imported("persistent.weights", "weights.packing", "weights.quantized") as found:
        yield SimpleNamespace(persistent=found[0], packing=found[1], quantized=found[2])


def placed(modules, spec):
    """Return the weights of ``spec`` as a GPU holds them, without contents."""

    def of(weight):
        if weight.held is not None:
            return modules.quantized.QuantizedStorage(None, *weight.shape, "plain", weight.held)
        dtype = np.dtype(np.float32 if weight.dtype == "F32" else ml_dtypes.bfloat16)
        vector = SimpleNamespace(dtype=dtype)
        return modules.packing.PackedMatrix(vector, *weight.shape) if weight.is_matrix else vector

    return {weight.name: of(weight) for weight in held_weights(spec, "auto", tuple(PACKED_FORMATS))}


def test_a_benchmarks_block_fp8_leaves_the_gates_unquantized_as_checkpoints_do(modules):
    weights = placed(modules, stored_as(SPEC, "fp8_block"))
    assert modules.persistent.weight_format_of(weights, SPEC) == "fp8_block"
    small = [weight for weight in held_weights(SPEC, "auto", ()) if not weight.is_rounded]
    assert [weight.name for weight in small] == [f"layers.{layer}.gates.weight" for layer in range(3)]


@pytest.mark.parametrize(
    ("name", "changed", "says"),
    [
        ("gates.weight", "fp8_block", "held in fp8_block; the persistent kernel reads bfloat16"),
        ("gates.weight", np.float32, "held in float32; the persistent kernel reads bfloat16"),
        ("conv.weight", np.float32, "held in float32; the persistent kernel reads bfloat16"),
        ("decay", ml_dtypes.bfloat16, "held in bfloat16; the persistent kernel reads float32"),
        ("gated_norm.weight", ml_dtypes.bfloat16, "held in bfloat16; the persistent kernel reads float32"),
    ],
)
def test_a_weight_that_is_read_as_it_is_has_the_dtype_that_is_read(modules, name, changed, says):
    weights = placed(modules, stored_as(SPEC, "fp8_block"))
    weights[f"layers.1.{name}"] = (
        modules.quantized.QuantizedStorage(None, 96, 5120, "plain", BLOCK)
        if changed == "fp8_block"
        else SimpleNamespace(dtype=np.dtype(changed))
    )
    with pytest.raises(KernelsMissing, match=says):
        modules.persistent.weight_format_of(weights, SPEC)
