"""Hybrids with experts and a shared expert in the persistent decode kernel, against the general path.

Of all layers but the last nothing is added to the residual, so that only the last one's choice matters, which
may be another at a near-tie (``near_ties``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from near_ties import nearest
from test_persistent_hybrid import CONTEXTS, MIN_COSINE, Subject, cosines

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
SHAPE = "qwen3.6-35b-a3b"
LAST = {"attention": 4, "delta net": 5}  # mixer of the last layer, layers
ADDED = ("output.weight", "experts.down.weight", "shared.down.weight")


class LastLayer(Subject):
    """A model of which the last layer alone adds to the residual."""

    def __init__(self, device, quantization, layers):
        super().__init__(device, SHAPE, quantization, "bf16", layers)
        for name in (f"layers.{layer}.{added}" for layer in range(layers - 1) for added in ADDED):
            held = self.model.weights[name]
            for matrix in held if isinstance(held, tuple) else (held,):
                matrix.storage.fill(0)


@pytest.fixture(scope="module", params=["bf16", "fp8_block"])
def quantization(request):
    return request.param


@pytest.fixture(scope="module", params=list(LAST))
def subject(request, device, quantization):
    return LastLayer(device, quantization, LAST[request.param])


@pytest.mark.parametrize("contexts", CONTEXTS.values(), ids=list(CONTEXTS))
def test_a_layer_gives_what_the_general_path_gives(subject, contexts):
    batch, live = subject.batch(contexts), np.array(contexts) > 0
    _, states = subject.general(batch)
    got, own_states = subject.persistent(batch)
    assert np.isfinite(got[live]).all()
    found = nearest(
        subject.ops,
        lambda: subject.general(batch)[0][live],
        got[live],
        cosines,
        enough=MIN_COSINE,
        clear_layers=len(subject.spec.layers) - 1,
    )
    slots = batch.state_slots.get()[live]
    found_states = [
        cosines(ours[slots], theirs[slots]) for ours, theirs in zip(own_states, states, strict=True)
    ]
    print(f"cosines: logits {found.min():.6f}, states and inputs {np.min(found_states):.6f}")
    assert found.min() >= MIN_COSINE
    assert np.min(found_states) >= MIN_COSINE


def test_the_same_step_gives_the_same_bits_and_counts_its_experts(device):
    subject = Subject(device, SHAPE, "fp8_block", "bf16")
    counts, contexts = subject.model.expert_load.counts, CONTEXTS["thirty-two"]
    subject.step.count_experts(counts)
    batch = subject.batch(contexts)
    counts[:] = 0
    first, states = subject.persistent(batch)
    tokens, steps = subject.ops.to_host(counts).transpose(1, 0, 2)
    assert (tokens.sum(axis=1) == 8 * len(contexts)).all()
    assert np.array_equal(steps, tokens > 0)
    for _ in range(5):
        logits, again = subject.persistent(batch)
        assert np.array_equal(first, logits)
        assert all(map(np.array_equal, states, again))
