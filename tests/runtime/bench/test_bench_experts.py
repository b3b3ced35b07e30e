"""Experts hit by a benchmark's steps, and the lower bounds that count no others."""

from dataclasses import replace

import numpy as np
import pytest
from test_engine_model import write_tiny
from test_mixtures import FAMILIES

from wisp_plan.presets import shape_spec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.stored_presets import stored_as
from wisp_plan.weights.expert_reads import uniform_hits
from wisp_plan.weights.held import held_weights
from wisp_runtime.bench.experts import HitCounter
from wisp_runtime.bench.record import Row
from wisp_runtime.bench.roofline import (
    CEILINGS,
    decode_lower_bound_s,
    phase_bytes,
    prefill_lower_bound_s,
    step_weight_bytes,
)
from wisp_runtime.bench.steps import decode_row
from wisp_runtime.bench.table import show_row
from wisp_runtime.bench.target import TargetOptions, open_target
from wisp_runtime.engine.persistent.strategy import DecodeStrategy

QWEN, H200 = shape_spec("qwen3-30b-a3b"), CEILINGS["H200"]


@pytest.mark.parametrize("tokens", [1, 2, 8, 32])
def test_uniform_routing_hits_as_many_experts_as_random_choices_do(tokens):
    random = np.random.default_rng(1)
    tries = [len({*np.concatenate([random.permutation(128)[:8] for _ in range(tokens)])}) for _ in range(400)]
    hits = uniform_hits(QWEN, tokens)
    assert set(hits) == set(range(48))
    assert hits[7] == pytest.approx(np.mean(tries), rel=0.02)


@pytest.mark.parametrize(("batch", "bound_ms"), [(1, 1.36), (8, 5.8), (16, 9.0), (32, 12.1)])
def test_the_lower_bound_of_a_step_reads_the_experts_that_are_hit(batch, bound_ms):
    bound = decode_lower_bound_s(QWEN, H200, batch=batch, context=512, weights="bf16", kv="bf16")
    assert 1e3 * bound == pytest.approx(bound_ms, rel=0.01)


def test_measured_hits_take_the_place_of_expected_ones():
    half = {layer: hits / 2 for layer, hits in uniform_hits(QWEN, 8).items()}
    named = {"batch": 8, "context": 512, "weights": "bf16", "kv": "bf16"}
    expected, measured = (decode_lower_bound_s(QWEN, H200, **named, hits=hits) for hits in (None, half))
    assert measured < 0.6 * expected
    every = step_weight_bytes(QWEN, "bf16")
    assert every == pytest.approx(2 * (30_532_122_624 - 151936 * 2048), rel=1e-6)
    assert step_weight_bytes(QWEN, "bf16", half) < every / 3


def test_a_long_prompt_reads_all_experts_and_multiplies_with_those_of_each_token():
    bound = prefill_lower_bound_s(QWEN, H200, sequences=1, prompt=7900, weights="bf16", kv="bf16")
    active = 48 * (2048 * (4096 + 2 * 512) + 4096 * 2048 + 8 * 3 * 768 * 2048)
    attention = 47 * 7900 * 7901 / 2 * 4 * 4096
    assert bound == pytest.approx((2 * 7900 * active + attention) / H200.flops_per_s, rel=0.03)
    phases = phase_bytes(QWEN, weights="bf16", kv="bf16", batch=1, context=512)
    assert phases["experts"] == pytest.approx(2 * 48 * 8 * 3 * 768 * 2048, rel=1e-6)


def test_a_decode_step_s_row_has_the_experts_hit_and_what_uniform_routing_hits(tmp_path):
    config, _ = FAMILIES["qwen3_moe"]
    folder = write_tiny(tmp_path / "m", config=config)
    target = open_target(
        TargetOptions(str(folder), "cpu", batch=3, context=120, max_step_tokens=64, threads=1)
    )
    for batch, at_most in ((1, 2.0), (3, 6.0)):
        row = decode_row(target, batch=batch, context=20, steps=8, sampling={"temperature": 1.0})
        assert 2 <= row.more["experts_hit"] <= at_most
        assert row.more["experts_hit_uniform"] == pytest.approx(8 * (1 - 0.75**batch))
        assert "experts hit a layer (uniform routing: " in show_row(row)


@pytest.mark.parametrize("rows", [5, 8])  # five sequences alone, and rounded up to a bucket
def test_hits_are_a_steps_mean_where_rows_of_padding_are_sent_to_experts_too(rows):
    class Load:
        """Counters after seven steps, whose rows were sent to 12 experts of layer 0 and 20 of layer 47."""

        layers = (0, 47)

        def read(self):
            counted = np.zeros((2, 2, 128), np.int64)
            for layer, experts in enumerate((12, 20)):
                counted[layer, 0, 0] = 7 * rows * 8
                counted[layer, 1, :experts] = 7
            return counted

    spec = replace(
        QWEN, layers=(QWEN.layers[0], *[replace(QWEN.layers[0], ffn=DenseSpec(8))] * 46, QWEN.layers[47])
    )
    assert HitCounter(Load(), spec, rows, 0).hits() == {0: 12, 47: 20}


def test_rows_that_are_sent_to_experts_are_those_of_a_bucket_on_the_general_path():
    target = open_target(TargetOptions("toy", "cpu", batch=8, context=64, threads=1))
    assert [target.routed_rows(sequences, 64) for sequences in (1, 5, 8)] == [1, 5, 8]
    gpu = replace(target, strategy=DecodeStrategy("persistent", up_to=5, up_to_tokens=320))
    sizes = (5, 320), (5, 321), (6, 64), (8, 64)
    assert [gpu.routed_rows(*each) for each in sizes] == [5, 8, 8, 8]


def test_a_dense_model_has_no_experts_to_count():
    class NoLoad:
        layers = ()

        def read(self):
            return np.zeros((0, 2, 0), np.int64)

    assert HitCounter(NoLoad(), shape_spec("toy"), 1, 0).hits() is None
    assert "experts" not in show_row(Row("decode_step_ms", 1.0, "general", "toy", "bf16", "bf16"))


def test_weights_that_quantized_checkpoints_leave_in_bf16_are_so_in_a_benchmark():
    held = held_weights(stored_as(shape_spec("qwen3.6-35b-a3b"), "fp8_block"), "auto", ("fp8_block",))
    formats = {weight.name: weight.held for weight in held if weight.role == "projection"}
    assert all((weight_format is None) == is_small(name) for name, weight_format in formats.items())
    assert formats["layers.0.gates.weight"] is None


def is_small(name):
    return name.endswith((".gates.weight", ".shared_gate.weight"))
