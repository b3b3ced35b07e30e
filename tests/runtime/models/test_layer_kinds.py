"""Layers with one part, several mixers or scaled results, against the formulas in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from float64_decoder import decode
from random_model import OPS, new_cache, random_model, step

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import LayerSpec, NormSpec, ParallelSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.rope import RopeSpec
from wisp_runtime.models.kv_calibration import keys_and_values

NORMS = NormSpec(1e-5)
ATTENTION = AttentionSpec(4, 2, 8, RopeSpec(rotary_size=8))
NO_POSITIONS = replace(ATTENTION, rope=None)
MLP = DenseSpec(56)
PAIR = ParallelSpec((ATTENTION, replace(NO_POSITIONS, window=5, scale=0.2)), (0.7, 1.4))
MAMBA = MambaSpec(6, 8, 5, groups=3)
BIASED = MambaSpec(
    *(4, 8, 16),
    has_input_bias=True,
    has_output_bias=True,
    gating="gate",
    scales=(0.5, 1.2, 0.7, 1.3, 2.0),
)
GATINGS = ("norm_then_gate", "gate")
MAMBA_PAIR = ParallelSpec((ATTENTION, BIASED), (0.7, 1.4))
LAYERS = {
    "no positions": [LayerSpec(NO_POSITIONS, MLP, NORMS)],
    "one part each": [LayerSpec(ATTENTION, None, NORMS), LayerSpec(None, MLP, NORMS)],
    "ungated": [LayerSpec(ATTENTION, DenseSpec(48, "relu2", has_bias=True), NORMS)],
    "scaled mlp": [LayerSpec(ATTENTION, DenseSpec(56, gate_scale=0.3, scale=1.7), NORMS)],
    "parallel": [LayerSpec(PAIR, MLP, NORMS), LayerSpec(PAIR, None, NORMS)],
    "parallel, unscaled last": [LayerSpec(replace(PAIR, scales=(0.4, 1.0)), MLP, NORMS)],
    "mamba": [LayerSpec(MAMBA, MLP, NORMS), LayerSpec(ATTENTION, MLP, NORMS), LayerSpec(MAMBA, None, NORMS)],
    "mamba, other gating": [LayerSpec(replace(MAMBA, gating=gating), MLP, NORMS) for gating in GATINGS],
    "mamba beside attention": [LayerSpec(MAMBA_PAIR, MLP, NORMS), LayerSpec(MAMBA_PAIR, MLP, NORMS)],
    "an mlp last": [LayerSpec(ATTENTION, MLP, NORMS), LayerSpec(None, DenseSpec(48, "relu2"), NORMS)],
}
SCALES = {"embedding_scale": 3.5, "logits_scale": 0.125}
TOKENS = np.random.default_rng(0).integers(0, 90, 21)


def model_of(layers, **changes):
    return ModelSpec("Toy", "toy", tuple(layers), 40, 90, 256, NORMS, **changes)


@pytest.mark.parametrize("changes", [{}, SCALES], ids=["", "scaled"])
@pytest.mark.parametrize("bounds", [(0, 21), (0, 1, 5, 6, 20, 21)], ids=str)
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_a_model_equals_its_formulas_however_a_prompt_is_chunked(layers, bounds, changes):
    spec = model_of(layers, **changes)
    model, weights = random_model(spec)
    expected, _ = decode(spec, weights, TOKENS)
    cache, scale = new_cache(spec), np.abs(expected).max()
    for first, last in pairwise(bounds):
        logits = step(model, cache, [(0, first, TOKENS[first:last])])
        np.testing.assert_allclose(logits, expected[first:last], atol=2e-5 * scale)


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_logits_of_the_last_row_equal_those_of_all_rows(layers):
    spec = model_of(layers, **SCALES)
    model, _ = random_model(spec)
    every, last = (step(model, new_cache(spec), [(0, 0, TOKENS)], rows) for rows in (None, [20]))
    np.testing.assert_allclose(last, every[20:], atol=1e-5)  # GEMMs of fewer rows add in another order


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("gate_scale", {"ffn": DenseSpec(56, gate_scale=0.3)}),
        ("scale", {"ffn": DenseSpec(56, scale=1.7)}),
        ("relu2", {"ffn": DenseSpec(56, "relu2")}),
        ("mamba's scales", {"mixer": replace(MAMBA, scales=BIASED.scales)}),
        ("scales", {"mixer": replace(PAIR, scales=(1.0, 1.0))}),
        ("positions", {"mixer": replace(PAIR, mixers=(NO_POSITIONS, PAIR.mixers[1]))}),
    ],
)
def test_every_switch_changes_the_result(part, changes):
    plain = LayerSpec(PAIR, MLP, NORMS)
    results = []
    for layer in (plain, replace(plain, **changes)):
        model, _ = random_model(model_of([layer]))
        results.append(step(model, new_cache(model.spec), [(0, 0, TOKENS)]))
    assert not np.allclose(*results, atol=1e-2), part


def test_parallel_mixers_have_a_cache_each():
    spec = model_of(LAYERS["parallel"])
    cache = new_cache(spec)
    assert len(cache.groups) == 2
    assert [cache.of_layer(layer, part).group for layer in (0, 1) for part in (0, 1)] == [0, 1, 0, 1]
    arrays = [cache.of_layer(layer, part).arrays[0] for layer in (0, 1) for part in (0, 1)]
    for index, array in enumerate(arrays):
        array[:] = index
    assert [float(array.max()) for array in arrays] == [0, 1, 2, 3]


@pytest.mark.parametrize(("name", "attending"), [("mamba", [1]), ("mamba beside attention", [0, 1])])
def test_keys_and_values_are_calibrated_beside_states(name, attending):
    model, _ = random_model(model_of(LAYERS[name]))
    rows = keys_and_values(model, OPS)
    assert list(rows) == attending
    assert all(np.isfinite(array).all() and array.any() for pair in rows.values() for array in pair)
