"""Weights of a Mamba-2 mixer: tensors of the checkpoint, their shapes, dtypes in which they are held."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wisp_plan.families.hybrid.mamba_weights import mamba_weights
from wisp_plan.spec.mamba import MambaSpec

SPEC = MambaSpec(heads=6, head_size=8, state_size=5, groups=3)
TENSORS = {
    "in_proj.weight": (132, 40),  # z 48, x 48, B 15, C 15, 6 time steps
    "conv1d.weight": (78, 1, 4),
    "conv1d.bias": (78,),
    "A_log": (6,),
    "dt_bias": (6,),
    "D": (6,),
    "norm.weight": (48,),
    "out_proj.weight": (40, 48),
}


@pytest.mark.parametrize(
    ("changes", "expect"),
    [
        ({}, TENSORS),
        ({"gating": "norm_then_gate"}, TENSORS),
        ({"gating": "gate"}, {name: TENSORS[name] for name in TENSORS if name != "norm.weight"}),
        ({"has_conv_bias": False}, {name: TENSORS[name] for name in TENSORS if name != "conv1d.bias"}),
        (
            {"has_input_bias": True, "has_output_bias": True},
            TENSORS | {"in_proj.bias": (132,), "out_proj.bias": (40,)},
        ),
    ],
)
def test_a_mixer_needs_the_tensors_of_its_switches(changes, expect):
    weights = list(mamba_weights(replace(SPEC, **changes), 40, "layers.0", "l", "m"))
    sources = [source for weight in weights for source in weight.sources]
    assert {source.tensor: source.shape for source in sources} == {
        f"l.m.{name}": shape for name, shape in expect.items()
    }
    assert all(weight.name.startswith("layers.0.mamba.") for weight in weights)


def test_what_decides_decays_is_held_in_float32():
    held = {weight.name: weight.dtype for weight in mamba_weights(SPEC, 40, "l", "l")}
    assert {name for name, dtype in held.items() if dtype == "F32"} == {
        f"l.mamba.{name}" for name in ("decay", "step_bias", "skip", "norm.weight")
    }
