"""Hybrids with mixtures of experts and a shared expert in the persistent kernel on an emulated GPU."""

from __future__ import annotations

import shutil
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from emulated_kernel import needs_compiler
from emulated_step import SOURCE, EmulatedStep, small_hybrid
from test_emulated_experts import Experts
from test_emulated_hybrid import states_equal
from test_emulated_quantized import Quantized
from test_emulated_step import CONTEXTS

from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_runtime.batch import Batch

pytestmark = needs_compiler
SIZES = {"hidden": 256, "heads": 2, "kv_heads": 1, "key_heads": 2, "value_heads": 4, "vocab": 300}
BLOCKS = 26  # as in test_emulated_hybrid.py
BATCHES = {
    "1": [20],
    "3": [5, 0, 33],
    "8": CONTEXTS["padding"],
    "16": [9 + 2 * n for n in range(16)],
    "32": [3 + n if n % 5 else 0 for n in range(32)],
}
MAX_ERROR = 1e-4  # bf16 leaves 7e-5 of cosines, quantized 5e-6
ROUTERS = {
    "few": RouterSpec(8, 3),
    "all": RouterSpec(4, 4),  # bf16 may choose another one of nearly equal experts: there is none
    "more than blocks": RouterSpec(160, 3, scale=2.0),  # two at once for a block; most are not hit
}


def hybrid_mixture(router: RouterSpec, inner: int = 256, layers: int = 5) -> ModelSpec:
    """Return a Qwen3.6 of other sizes."""
    ffn = MoeSpec(router, inner, shared=DenseSpec(inner), has_shared_gate=True)
    return small_hybrid(layers, ffn, **SIZES)


class HybridExperts(Experts):
    """Two kinds of layers in turn, each with a router, experts, a shared expert and its gate."""

    def packed(self, name: str, matrix: np.ndarray, permutation: str) -> np.ndarray:
        """Pack a matrix; gates stay bf16."""
        packs = super() if "gates" not in name else super(Quantized, self)
        return packs.packed(name, matrix, permutation)

    def batch(self, contexts: list[int], seed: int = 1) -> Batch:
        """Return a batch without near-ties; the states stay as they were."""
        before = [state.copy() for state in self.cache.states]
        batch = super().batch(contexts, seed)
        self._restore(before)
        return batch

    def general(self, batch: Batch) -> np.ndarray:
        """Compute the step by the general path from the states that the emulated GPU has."""
        self._restore([state.astype(np.float32) for state in self.states])
        return super().general(batch)

    def _restore(self, states: list[np.ndarray]) -> None:
        for state, old in zip(self.cache.states, states, strict=True):
            state[:] = old

    def equals_general(self, contexts: list[int], seed: int, max_error: float) -> bool:
        """Say so of logits, cache, the experts' counts and the states."""
        before, slots = [state.copy() for state in self.states], self.batch(contexts).state_slots
        equals = super().equals_general(contexts, seed, max_error)
        return equals and states_equal(self, slots, before, max_error)


def width_of(contexts: list[int]) -> int:
    return next(width for width in (8, 16, 32) if width >= len(contexts))


@lru_cache(maxsize=2)
def step_of(name: str, width: int, weight_format: str = "bf16") -> HybridExperts:
    return HybridExperts(hybrid_mixture(ROUTERS[name]), BLOCKS, width, weight_format)


@pytest.mark.parametrize(
    ("batch", "weight_format", "name"),
    [(batch, "fp8_block", "few") for batch in BATCHES]
    + [(batch, "bf16", "all") for batch in ("1", "16", "32")]
    + [("3", "bf16", "few"), ("8", "fp8_block", "more than blocks")],
)
def test_a_step_equals_the_general_path(batch: str, weight_format: str, name: str) -> None:
    step = step_of(name, width_of(BATCHES[batch]), weight_format)
    assert step.equals_general(BATCHES[batch], seed=1, max_error=MAX_ERROR)


@pytest.mark.parametrize(("weight_format", "batch"), [("fp8_block", "8"), ("fp8_block", "32")])
def test_the_order_of_events_changes_no_bit(weight_format: str, batch: str) -> None:
    step = step_of("few", width_of(BATCHES[batch]), weight_format)
    made = EmulatedStep.batch(step, BATCHES[batch])
    live, before = made.context_lengths > 0, [state.copy() for state in step.states]
    results = []
    for seed in range(3):
        for state, old in zip(step.states, before, strict=True):
            state[:] = old
        results.append(
            [step.launch(made, seed)[live], *(state.view(np.uint8).copy() for state in step.states)]
        )
    for again in results[1:]:
        assert all(map(np.array_equal, results[0], again)), "bits differ"


def test_a_step_leaves_what_the_next_needs() -> None:
    step = step_of("few", 8, "fp8_block")
    for turn, batch in enumerate(("8", "1", "3")):
        assert step.equals_general(BATCHES[batch], seed=10 + turn, max_error=MAX_ERROR), batch


FORGOTTEN = {  # part of the router, and what stands there instead
    "to wait for the gate": ("are_there &= is_written(gate, of_gate);", "is_written(gate, of_gate);"),
    "the gate": ("1.f / (1.f + __expf(-gate * c.storage.row_scales[sequence]))", "1.f"),
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_the_emulator_finds_what_was_forgotten(what: str, tmp_path: Path) -> None:
    shutil.copytree(SOURCE.parent, tmp_path, dirs_exist_ok=True)
    (part, without), file = FORGOTTEN[what], tmp_path / "experts/router.cuh"
    text = file.read_text()
    assert part in text
    file.write_text(text.replace(part, without))
    step = HybridExperts(hybrid_mixture(ROUTERS["few"]), BLOCKS, 8, "fp8_block", folder=tmp_path)
    assert not all(step.equals_general(BATCHES["3"], seed, MAX_ERROR) for seed in range(64))
