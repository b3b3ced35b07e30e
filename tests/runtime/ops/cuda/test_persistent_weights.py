"""Weights of the persistent kernel: refused where one has a format that it does not read; on a fake CuPy."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
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


HYBRID_MIXTURE = replace(shape_spec("qwen3.6-35b-a3b"), layers=shape_spec("qwen3.6-35b-a3b").layers[:4])
DISTANCE = 4096


def expert_weights(modules, moved=None, shared_format="fp8_block"):
    """Return three experts of two matrices each, and the shared one's behind them, but `moved`."""
    weights = {}
    for layer in range(4):
        prefix = f"layers.{layer}"
        for number, name in enumerate(("gate_up.weight", "down.weight")):
            places = [(100 * layer + 10 * number + expert) * DISTANCE for expert in range(4)]
            places[3] += 16 * (moved == f"{prefix}.shared.{name}")
            held = [
                modules.quantized.QuantizedStorage(
                    SimpleNamespace(data=SimpleNamespace(ptr=place)), 64, 128, "plain", PACKED_FORMATS[packed]
                )
                for place, packed in zip(places, ["fp8_block"] * 3 + [shared_format], strict=True)
            ]
            weights[f"{prefix}.experts.{name}"] = tuple(held[:3])
            weights[f"{prefix}.shared.{name}"] = held[3]
        for name in ("router.weight", "shared_gate.weight"):
            weights[f"{prefix}.{name}"] = SimpleNamespace(dtype=np.dtype(ml_dtypes.bfloat16))
    return weights


def test_a_shared_expert_lies_where_one_more_would(modules):
    strides = modules.persistent.expert_strides(expert_weights(modules), HYBRID_MIXTURE)
    assert strides == {"gate_up_stride": DISTANCE, "down_stride": DISTANCE}


@pytest.mark.parametrize("settings", [{"moved": "layers.2.shared.down.weight"}, {"shared_format": "fp8"}])
def test_a_shared_expert_that_is_held_otherwise_is_refused(modules, settings):
    with pytest.raises(KernelsMissing, match="is held in another format, or elsewhere"):
        modules.persistent.expert_strides(expert_weights(modules, **settings), HYBRID_MIXTURE)


def test_a_shared_experts_gate_in_float32_is_refused(modules):
    weights = expert_weights(modules)
    weights["layers.1.shared_gate.weight"] = SimpleNamespace(dtype=np.dtype(np.float32))
    with pytest.raises(KernelsMissing, match="its router has float32 weights"):
        modules.persistent.expert_strides(weights, HYBRID_MIXTURE)
