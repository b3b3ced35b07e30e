"""Mixtures of experts in the persistent decode kernel against the general path.

Both round the router's input, at different places: a sequence whose last chosen expert is hardly better than
the next may get another one. Such a row has to be that of the general path with another choice
(``near_ties``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
from near_ties import nearest
from spec_changes import changed
from test_persistent_decode import CONTEXTS, MIN_COSINE, Subject, cosines

from wisp_plan.presets import shape_spec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
SHAPE = "qwen3-30b-a3b"
BATCHES = {name: contexts for name, contexts in CONTEXTS.items() if len(contexts) <= 32}


def subject_of(device, layers, quantization="bf16"):
    spec = changed(shape_spec(SHAPE), layers=layers, vocab=4000, max_context=8192)
    subject = Subject(device, spec, quantization=quantization)
    subject.step.count_experts(subject.model.expert_load.counts)
    return subject


@pytest.fixture(scope="module")
def one_layer(device):
    return subject_of(device, 1)


@pytest.mark.parametrize("contexts", BATCHES.values(), ids=list(BATCHES))
def test_a_layer_gives_what_the_general_path_gives(one_layer, contexts):
    check_layers(one_layer, contexts)


@pytest.mark.parametrize("quantization", ["fp8_block", "int4"])
def test_a_layer_of_quantized_experts_gives_what_the_general_path_gives(device, quantization):
    subject = subject_of(device, 1, quantization)
    for name in ("one", "eight", "sixteen", "thirty-two"):
        check_layers(subject, BATCHES[name])


def check_layers(subject, contexts, min_cosine=MIN_COSINE):
    batch, live = subject.batch(contexts), np.array(contexts) > 0
    got, layers = subject.persistent(batch)[live], len(subject.spec.layers)
    assert np.isfinite(got).all()
    found = nearest(
        subject.ops, lambda: subject.general(batch)[live], got, cosines, enough=min_cosine, layers=layers
    )
    print(f"cosines: {found.min():.6f}")
    assert found.min() >= min_cosine


def test_the_same_step_gives_the_same_bits_and_counts_its_experts(device):
    subject = subject_of(device, 3)
    counts, contexts = subject.model.expert_load.counts, CONTEXTS["thirty-two"]
    batch = subject.batch(contexts)
    counts[:] = 0
    first = subject.persistent(batch)
    tokens, steps = subject.ops.to_host(counts).transpose(1, 0, 2)
    assert (tokens.sum(axis=1) == 8 * len(contexts)).all()
    assert np.array_equal(steps, tokens > 0)
    for _ in range(5):
        assert np.array_equal(first, subject.persistent(batch))


def test_deterministic_mode_is_refused(device):
    from wisp_runtime.errors import KernelsMissing
    from wisp_runtime.ops.cuda.persistent.decode import PersistentDecode

    subject = subject_of(device, 1)
    rope = subject.model.rope_table(subject.spec.layers[0].mixer)
    made = device, subject.spec, subject.model.weights, rope, 8, subject.cache.encodings
    with pytest.raises(KernelsMissing, match="depends on the batch"):
        PersistentDecode(*made, batch_invariant=True)
