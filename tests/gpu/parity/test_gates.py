"""Batch invariance of tokens: alone or batched, cached or computed, preempted or not.

Greedy tokens are equal; where two runs part, the two tokens' logits in float32 are closer than rounding to
bf16 can push them apart (sums of another order round differently); that is counted and printed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent))
from parity_compare import report
from parity_engine import difference, generate, open_engine, with_blocks
from parity_models import CASE_NAMES, CASES, write_model
from parity_reference import Reference

DEVICE = os.environ.get("WISP_TEST_PARITY_DEVICE", "cuda")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
TOKENS = 128 if DEVICE == "cuda" else 40
CHOSEN = CASES[:4]


class Gate:
    """An engine, transformers' model of it, and prompts."""

    def __init__(self, case, folder: Path) -> None:
        self.case = case
        self.reference = Reference(write_model(case, folder), DEVICE)
        self.engine = open_engine(folder, DEVICE)
        random = np.random.default_rng(11)
        self.prompts = [
            random.integers(0, case.config["vocab_size"], 20 + 13 * n).tolist() for n in range(32)
        ]

    def require_same(self, what: str, prompts, ones, others) -> None:
        """Require equal answers, or a difference that bf16 explains; report how many differ."""
        parted, worst, noise = 0, 0.0, 0.0
        for prompt, one, other in zip(prompts, ones, others, strict=True):
            step, gap, allowed = difference(self.reference, prompt, one, other)
            parted += step is not None
            worst, noise = max(worst, gap), max(noise, allowed)
            assert gap <= allowed, (
                f"{what}: step {step}: gap {gap} of the two tokens, noise of bf16 {allowed}"
            )
        report(
            f"{self.case.name:<40} {what:<24} {parted} of {len(ones)} answers part, largest gap {worst:.4f} "
            f"(noise of bf16 {noise:.4f})",
            case=self.case.name,
            what=what,
            parted=parted,
            answers=len(ones),
            gap=worst,
            noise=noise,
        )


@pytest.fixture(scope="module", params=CHOSEN, ids=CASE_NAMES[: len(CHOSEN)])
def gate(request, tmp_path_factory):
    if DEVICE == "cuda":
        request.getfixturevalue("device")
    one = Gate(request.param, tmp_path_factory.mktemp("gates") / "model")
    yield one
    one.reference.close()


def test_a_request_alone_is_answered_as_in_a_batch_of_32(gate):
    together, _ = generate(gate.engine, gate.prompts, TOKENS)
    some = range(0, 32, 5)
    alone = [generate(gate.engine, [gate.prompts[n]], TOKENS)[0][0] for n in some]
    gate.require_same(
        "alone, in a batch of 32", [gate.prompts[n] for n in some], alone, [together[n] for n in some]
    )


def test_a_cached_prefix_is_answered_as_a_computed_one(gate):
    prompts = [gate.prompts[-1][:300] + gate.prompts[n][:9] for n in range(4)]
    scheduler = gate.engine.scheduler()
    fresh = [generate(gate.engine, [prompt], TOKENS)[0][0] for prompt in prompts]
    generate(gate.engine, [gate.prompts[-1][:300]], 1, scheduler=scheduler, name="prefix")
    hits, seen = generate(gate.engine, prompts, TOKENS, scheduler=scheduler)
    assert seen.cached_tokens >= 4 * 288
    gate.require_same("cached prefix, computed", prompts, hits, fresh)


def test_a_preempted_request_is_answered_as_an_undisturbed_one(gate):
    prompts = gate.prompts[:6]
    undisturbed, _ = generate(gate.engine, prompts, TOKENS)
    admits_all = sum(-(-len(prompt) // 16) for prompt in prompts) + len(prompts)  # but has no room to grow
    squeezed, seen = generate(gate.engine, prompts, TOKENS, scheduler=with_blocks(gate.engine, admits_all))
    assert seen.preemptions > 0
    gate.require_same("preempted, undisturbed", prompts, squeezed, undisturbed)
