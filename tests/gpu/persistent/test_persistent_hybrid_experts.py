"""Hybrids with experts and a shared expert in the persistent decode kernel, against the general path.

Of all layers but the last nothing is added to the residual, so the last one's choice can be compared: its
router's logits show which sequences choose clearly.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_persistent_experts import MIN_MARGIN, MIN_MIXTURE_COSINE, MIN_SHARE_OF_CLEAR_ROWS
from test_persistent_hybrid import CONTEXTS, MIN_COSINE, Subject, cosines

from wisp_plan.spec.moe import MoeSpec

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

    def margins(self, rows):
        """Of each row, after a step: how clear its choice was, in deviations of its logits."""
        (mixture,) = self.spec.ffns(MoeSpec)
        experts, last = mixture.router.experts, (len(self.spec.layers) - 1) % 2
        width = next(width for width in (8, 16, 32) if width >= rows)
        written = self.ops.to_host(self.step._exchanged["router_logits"]).reshape(-1)
        logits = written[: 2 * width * (experts + 1)].reshape(2, width, experts + 1)[last, :rows, :experts]
        ordered, chosen = np.sort(logits.astype(np.float64), axis=1)[:, ::-1], mixture.router.chosen
        return (ordered[:, chosen - 1] - ordered[:, chosen]) / logits.std(axis=1)


@pytest.fixture(scope="module", params=["bf16", "fp8_block"])
def quantization(request):
    return request.param


@pytest.fixture(scope="module", params=list(LAST))
def subject(request, device, quantization):
    return LastLayer(device, quantization, LAST[request.param])


@pytest.mark.parametrize("contexts", CONTEXTS.values(), ids=list(CONTEXTS))
def test_a_layer_gives_what_the_general_path_gives(subject, contexts):
    batch, live = subject.batch(contexts), np.array(contexts) > 0
    expected, states = subject.general(batch)
    got, own_states = subject.persistent(batch)
    errors, is_clear = cosines(got[live], expected[live]), subject.margins(len(contexts))[live] > MIN_MARGIN
    print(f"cosines: {errors[is_clear].min(initial=1):.6f} of {is_clear.sum()} rows, all {errors.min():.6f}")
    assert np.isfinite(got[live]).all()
    assert live.sum() < 8 or is_clear.mean() > MIN_SHARE_OF_CLEAR_ROWS
    assert (errors[is_clear] >= MIN_COSINE).all()
    assert errors.min() >= MIN_MIXTURE_COSINE
    slots = subject.ops.to_host(batch.state_slots)
    used = slots[slots >= 0]
    for ours, theirs in zip(own_states, states, strict=True):
        assert (cosines(ours[used], theirs[used]) >= MIN_COSINE).all()


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
