"""Quantized weights in the persistent decode kernel: stages of a layer against float32 of the weights.

The kernel rounds activations to f16, keys and values to bf16: 1 - cosine is below 3e-5 where both are right.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench/persistent"))

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
MIN_COSINE, MAX_NORM_ERROR = 0.9999, 0.01
FORMATS = ("bf16", "fp8", "fp8_block", "int4", "int4_zero", "mxfp4", "nvfp4")


@pytest.fixture(scope="module", params=FORMATS)
def subject(request, device):
    from step_subject import StepSubject

    made = StepSubject("llama-3-8b", request.param, layers=2)
    made.load()
    return made


@pytest.mark.parametrize("size", [1, 8, 16, 32, 64])
def test_each_stage_equals_float32_of_the_dequantized_weights(subject, size):
    found = subject.compare(size)
    print(found)
    assert min(found["cosines"].values()) > MIN_COSINE
    assert max(abs(ratio - 1) for ratio in found["norms"].values()) < MAX_NORM_ERROR


def test_steps_of_32_and_64_give_a_row_the_same_bits(subject):
    few = subject.step(20)[:20].copy()
    assert bool((subject.step(40)[:20] == few).all())


def test_the_same_step_gives_the_same_bits(subject):
    first = subject.step(40).copy()
    for _ in range(5):
        assert bool((subject.step(40) == first).all())
