"""The comparison of mixtures that may choose either expert of a near-tie, on the CPU: it accepts no more."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "gpu/persistent"))
from decode_batch import decode_batch
from near_ties import MIN_MARGIN, choices_of, choosing, nearest

from wisp_plan.presets import shape_spec
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.bench.contexts import fill_with_noise
from wisp_runtime.layers.cache import allocate_blocks
from wisp_runtime.models.load import random_model
from wisp_runtime.ops.cpu.ops import CpuOps

ENOUGH, CHOSEN, EXPERTS, LAYERS = 0.99999, 4, 48, 2


class Model:
    """Two layers of a small gpt-oss whose router has a bias, and a step of sixteen sequences."""

    def __init__(self):
        spec = shape_spec("gpt-oss-20b")
        attention, ffn = spec.mixers(AttentionSpec)[0], spec.ffns(MoeSpec)[0]
        attention = replace(attention, heads=4, kv_heads=2)
        ffn = replace(ffn, router=replace(ffn.router, experts=EXPERTS, chosen=CHOSEN), inner=64)
        layers = tuple(replace(layer, mixer=attention, ffn=ffn) for layer in spec.layers[:LAYERS])
        changes = {"hidden": 128, "vocab": 100, "max_context": 256, "quantization": None}
        self.ops = CpuOps(1)
        self.model = random_model(replace(spec, layers=layers, **changes), self.ops, 7)
        random = np.random.default_rng(3)
        for layer in range(LAYERS):
            bias = self.model.weights[f"layers.{layer}.router.bias"]
            bias[:] = 0.3 * random.standard_normal(bias.shape)
        self.cache = allocate_blocks(self.model.spec, self.ops, blocks=80, block_tokens=16)
        fill_with_noise(self.cache, self.ops)
        self.batch = decode_batch([9 + 4 * row for row in range(16)], 100, range(80), 16, 1)

    def general(self):
        groups = (self.batch,) * (len(self.cache.groups) - 1)
        return self.model.forward(replace(self.batch, other_groups=groups), self.cache).logits.copy()

    def nearest(self, got):
        return nearest(self.ops, self.general, got, cosines, enough=ENOUGH, layers=LAYERS)


def cosines(a, b):
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.mark.parametrize("ranks", [(1, 0), (0, 1), (1, 1), (2, 3)])
def test_rows_with_another_choice_of_a_near_tie_are_right(model, ranks):
    with choosing(model.ops, ranks):
        got = model.general()
    assert (cosines(got, model.general()) < ENOUGH).any(), "no row has a near-tie"
    assert (model.nearest(got) >= ENOUGH).all()


@pytest.mark.parametrize("layer", range(LAYERS))
def test_an_expert_that_is_clearly_worse_is_wrong(model, layer, monkeypatch):
    monkeypatch.setattr("near_ties.choices_of", lambda row, chosen: [[*np.argsort(-row)[1 : chosen + 1]]])
    with choosing(model.ops, (0,) * layer + (1,) + (0,) * (LAYERS - layer - 1)):
        got = model.general()
    monkeypatch.undo()
    assert (model.nearest(got) < ENOUGH).any()


@pytest.mark.parametrize("part", ["sinks", "router.bias", "experts.down.bias", "experts.gate_up.bias"])
def test_a_part_that_is_forgotten_is_wrong(model, part):
    weight = model.model.weights[f"layers.1.{part}"]
    held = weight.copy()
    weight[:] = np.random.default_rng(5).standard_normal(weight.shape)
    got = model.general()
    weight[:] = held
    assert (model.nearest(got) < ENOUGH).any()


@pytest.mark.parametrize(
    ("logits", "expect"),
    [
        ([4.0, 3.0, 2.0, 1.0], [[0, 1]]),
        ([4.0, 3.0, 2.99, 1.0], [[0, 1], [0, 2]]),
        ([1.0, 2.99, 4.0, 3.0], [[2, 3], [2, 1]]),
        ([3.02, 3.01, 3.0, 0.0], [[0, 1], [0, 2], [1, 2]]),  # any two of three
        ([np.nan] * 4, [[0, 1]]),  # padding may be anything
        ([1.0] * 40, [[0, 1], [0, 2], [0, 3], [0, 4]]),
        ([4.0, 3.0, 3.0 - 2 * MIN_MARGIN, 1.0], [[0, 1]]),
    ],
)
def test_choices_are_those_that_near_ties_leave(logits, expect):
    assert choices_of(np.array(logits), 2) == expect
