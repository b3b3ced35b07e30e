"""Scales of a quantized KV cache that a start measures: none for usual layers, powers of two for others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wisp_plan.kv_formats.layers import KV_FORMATS, KvLayers
from wisp_plan.presets import shape_spec
from wisp_runtime.bench.checkpoint import write_checkpoint
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.startup import start
from wisp_runtime.models.kv_calibration import calibrate, keys_and_values, scale_for
from wisp_runtime.models.load import random_model
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.reference.kv_cache.blocks import decode_rows, encode_rows

SPEC = replace(shape_spec("toy"), max_context=128)
NORMAL = np.random.default_rng(3).standard_normal((64, 128)).astype(np.float32)
MEASURED = [name for name, kv_format in KV_FORMATS.items() if kv_format.has_layer_scale]


class Written:
    """A model whose keys and values of a layer are given numbers, times the layer's factors."""

    def __init__(self, spec, factors):
        self.spec, self.ops, self.factors = spec, CpuOps(1), factors

    def forward(self, batch, cache):
        for layer, (of_keys, of_values) in enumerate(self.factors):
            attention = self.spec.layers[layer].mixer
            rows = np.resize(NORMAL, (len(batch.tokens), attention.kv_heads, attention.head_size))
            held = cache.of_layer(layer)
            slots = batch.of_group(held.group).slots
            self.ops.write_kv(rows * of_keys, rows * of_values, slots, *held.arrays, held.encoding)


def calibrated(factors, kv, stored=None):
    model = Written(SPEC, factors)
    return calibrate(model, model.ops, kv, stored or {})


@pytest.mark.parametrize("kv_format", [KV_FORMATS[name] for name in MEASURED], ids=MEASURED)
@pytest.mark.parametrize(
    ("factor", "expect"),
    [(1.0, 1.0), (0.2, 1.0), (7.0, 1.0), (1e-3, 2.0**-10), (0.01, 2.0**-7), (60.0, 64.0)],
)
def test_a_scale_is_the_magnitude_where_that_is_unusual(kv_format, factor, expect):
    assert scale_for(NORMAL * np.float32(factor), kv_format) == expect


def test_outliers_raise_a_scale_until_four_times_as_much_is_held():
    rows = NORMAL.copy()
    rows[:, 5] = 300
    assert scale_for(rows, KV_FORMATS["fp8"]) == 4  # 1,200 of 1,792
    assert scale_for(rows, KV_FORMATS["nvfp4"]) == 1  # 1,200 of 2,688
    assert scale_for(rows, KV_FORMATS["turbo8"]) == 32  # all are 26.5 after the rotation


def test_nothing_to_measure_is_a_scale_of_1():
    for rows in (np.zeros((4, 16), np.float32), np.full((4, 16), np.nan, np.float32)):
        assert scale_for(rows, KV_FORMATS["fp8"]) == 1


@pytest.mark.parametrize("name", MEASURED)
def test_small_values_survive_by_their_scale(name):
    rows, kv_format = NORMAL * np.float32(1e-3), KV_FORMATS[name]

    def error(scale):
        found = decode_rows(kv_format, *encode_rows(kv_format, rows, scale), scale)
        return float(((found - rows) ** 2).mean() / (rows**2).mean())

    usual = decode_rows(kv_format, *encode_rows(kv_format, NORMAL, 1.0), 1.0)
    assert error(1.0) > 0.1  # lost
    assert error(scale_for(rows, kv_format)) < 1.2 * ((usual - NORMAL) ** 2).mean()


def test_only_unusual_layers_get_scales_and_the_log_says_so():
    factors = [(1.0, 1.0), (60.0, 1e-3)]
    made = calibrated(factors, KvLayers.of("fp8", "cpu"))
    assert made.scales == {1: (64.0, 2.0**-10)}
    assert made.note == (
        "KV cache fp8: no scales in the checkpoint, 1.0, or 0.000976562 to 64 by a prompt of 64 tokens"
    )
    assert calibrated([(1.0, 1.0)] * 2, KvLayers.of("fp8", "cpu")).note == (
        "KV cache fp8: no scales in the checkpoint, 1.0"
    )


def test_scales_of_the_checkpoint_stay_and_are_checked():
    factors, stored = [(1.0, 1.0), (60.0, 1.0)], {1: (0.01, 0.02)}
    made = calibrated(factors, KvLayers.of("fp8", "cpu"), stored)
    assert made.scales == stored
    assert made.note == (
        "KV cache fp8: scales of 1 layers from the checkpoint, 1.0 elsewhere; keys or values of layers 1 are "
        "larger than their scales hold"
    )


def test_formats_with_scales_of_their_own_and_bf16_layers_are_not_measured():
    factors = [(60.0, 60.0)] * 2
    assert calibrated(factors, KvLayers.of("turbo4", "cpu")).scales == {}
    spec = replace(SPEC, layers=SPEC.layers[:1] * 3)
    model = Written(spec, [(60.0, 60.0)] * 3)
    made = calibrate(model, model.ops, KvLayers.of("fp8", "cpu", 1), {})
    assert made.scales == {1: (64.0, 64.0)}


def test_a_models_keys_and_values_are_those_of_64_tokens():
    ops = CpuOps(1)
    found = keys_and_values(random_model(SPEC, ops, 1), ops)
    assert sorted(found) == list(range(len(SPEC.layers)))
    for rows in (array for pair in found.values() for array in pair):
        assert rows.shape[0] * rows.shape[2] == 64
        assert np.isfinite(rows).all()
        assert (rows != 0).any(axis=(1, 3)).all()


def test_a_start_reports_the_scales_of_its_cache(tmp_path):
    write_checkpoint("toy", tmp_path, lambda *_: None)
    notes = {}
    config = ServeConfig(model=str(tmp_path), device="cpu", kv_cache_dtype="fp8", max_context=128, threads=1)
    start(config, lambda phase: notes.update({phase.name: phase.note} if phase.is_done else {}))
    assert notes["kernels"].startswith("KV cache fp8: no scales in the checkpoint, 1.0")
