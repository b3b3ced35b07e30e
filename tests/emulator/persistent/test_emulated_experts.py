"""Mixtures of experts in the persistent kernel on an emulated GPU, against the general path.

The general path's router sees float32, the kernel's bf16 or f16: batches are such that both choose alike,
which the counts of the experts show.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from emulated_kernel import HERE, DidNotEnd, needs_compiler
from emulated_step import SOURCE, EmulatedStep, small
from test_emulated_quantized import Quantized
from test_emulated_step import CONTEXTS, equals_general

from wisp_plan.quantization.packed_format import EXPERT_FORMATS, PACKED_FORMATS
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_runtime.batch import Batch

pytestmark = needs_compiler

SIZES = {"hidden": 256, "heads": 2, "kv_heads": 1, "layers": 2, "vocab": 300, "head_size": 128}
MAX_ERROR = 5e-5
MIN_MARGIN = 0.01  # of logits' deviation: between the last expert that is chosen and the next
BATCHES = {
    "1": [20],
    "3": [5, 0, 33],
    "8": CONTEXTS["padding"],
    "16": [9 + 2 * n for n in range(16)],
    "17": [7 + n for n in range(17)],
    "32": [3 + n for n in range(32)],
}


def mixture(router: RouterSpec, inner: int = 256, **sizes: int) -> ModelSpec:
    """Return Qwen3's layers with experts in place of the MLP."""
    spec = small("qwen3-8b", **SIZES | sizes)
    return replace(spec, layers=tuple(replace(layer, ffn=MoeSpec(router, inner)) for layer in spec.layers))


class Experts(Quantized):
    """A mixture of experts of random weights, in a format."""

    def __init__(
        self, spec: ModelSpec, blocks: int, width: int, weight_format: str, folder: Path = SOURCE.parent
    ) -> None:
        layers, _, experts = weight_format.partition(":")
        self._formats = {"layers": PACKED_FORMATS.get(layers)}
        self._of_experts = {"layers": EXPERT_FORMATS[experts]} if experts else self._formats
        formats = (f"-DWISP_WEIGHT_FORMAT={layers}", f"-DWISP_EXPERT_FORMAT={experts or layers}")
        options = (*formats, f"-DWIDTH={width}", f"-I{folder}")
        EmulatedStep.__init__(self, spec, blocks, options, HERE / "quantized_decode.cu")

    def packed(self, name: str, matrix: np.ndarray, permutation: str) -> np.ndarray:
        of_layers = self._formats
        self._formats = self._of_experts if ".experts." in name else of_layers
        try:
            return super().packed(name, matrix, permutation)
        finally:
            self._formats = of_layers

    def batch(self, contexts: list[int], seed: int = 1) -> Batch:
        """Return a batch without near-ties: the paths' routers see inputs that are rounded differently."""
        margins: list[float] = []
        route, cached = self.ops.route, (self.cache.keys.copy(), self.cache.values.copy())

        def watched(x: np.ndarray, weight: np.ndarray, spec: RouterSpec, **options: object) -> object:
            bias = options.get("bias")
            logits = np.sort(x @ weight.T + (0 if bias is None else bias), axis=1)
            if spec.chosen < spec.experts:
                gaps = logits[:, -spec.chosen] - logits[:, -spec.chosen - 1]
                margins.append((gaps / logits.std(axis=1)).min())
            return route(x, weight, spec, **options)

        self.ops.route = watched
        try:
            for tried in range(seed, seed + 1000):
                margins.clear()
                batch = super().batch(contexts, tried)
                self.general(batch)
                self.cache.keys[:], self.cache.values[:] = cached
                if min(margins, default=1) > MIN_MARGIN:
                    return batch
        finally:
            del self.ops.route
        raise AssertionError("every batch has near-ties")

    def equals_general(self, contexts: list[int], seed: int, max_error: float = MAX_ERROR) -> bool:
        """Say so of logits, cache, and the experts' counts."""
        self.expert_counts[:] = 0
        batch, general = self.batch(contexts), self.model.expert_load.counts
        cached = self.cache.keys.copy(), self.cache.values.copy()
        general[:] = 0
        self.general(batch)
        self.cache.keys[:], self.cache.values[:] = cached
        counts = general.copy()
        is_equal = equals_general(self, contexts, seed, max_error, batch)
        return is_equal and np.array_equal(self.expert_counts, counts)


MODELS = {  # experts, chosen, inner size, thread blocks
    "two tiles a cluster": (RouterSpec(16, 4), 256, 16),
    "uneven": (RouterSpec(40, 3), 96, 10),
    "four tiles": (RouterSpec(8, 2), 128, 8),
    "three blocks of K": (RouterSpec(16, 4), 768, 16),
    "not normalized": (RouterSpec(16, 4, normalizes=False, scale=1.5), 256, 14),
}


@lru_cache(maxsize=2)
def step_of(name: str, width: int, weight_format: str = "bf16") -> Experts:
    router, inner, blocks = MODELS[name]
    return Experts(mixture(router, inner), blocks, width, weight_format)


def width_of(contexts: list[int]) -> int:
    return next(width for width in (8, 16, 32) if width >= len(contexts))


# bf16 leaves 6e-5; f16, to which quantized models round, 2e-5.
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_equals_the_general_path(name: str, batch: str) -> None:
    contexts = BATCHES[batch]
    step = step_of(name, width_of(contexts))
    assert step.equals_general(contexts, seed=1, max_error=2 * MAX_ERROR)


@pytest.mark.parametrize(
    ("name", "weight_format", "batch"),
    [
        ("two tiles a cluster", "fp8_block", "1"),
        ("two tiles a cluster", "fp8_block", "8"),
        ("two tiles a cluster", "fp8_block", "17"),
        ("two tiles a cluster", "fp8_block", "32"),
        ("uneven", "fp8_block", "3"),
        ("uneven", "fp8_block", "32"),
        ("three blocks of K", "fp8_block", "32"),
        ("three blocks of K", "fp8", "8"),
        ("three blocks of K", "int4", "8"),  # blocks of 256: a unit has two experts
        ("three blocks of K", "int4", "16"),
        ("three blocks of K", "int4", "32"),
        ("three blocks of K", "mxfp4:mxfp4_fields", "8"),  # f16 between the phases of layers, bf16 of experts
        ("three blocks of K", "mxfp4:mxfp4_fields", "32"),
        ("four tiles", "nvfp4", "32"),
    ],
)
def test_a_quantized_step_equals_the_general_path(name: str, weight_format: str, batch: str) -> None:
    contexts = BATCHES[batch]
    step = step_of(name, width_of(contexts), weight_format)
    assert step.equals_general(contexts, seed=2)


@pytest.mark.parametrize(("weight_format", "batch"), [("bf16", "32"), ("fp8_block", "8"), ("int4", "17")])
def test_the_order_of_events_changes_no_bit(weight_format: str, batch: str) -> None:
    step = step_of("two tiles a cluster", width_of(BATCHES[batch]), weight_format)
    made = step.batch(BATCHES[batch])
    live, logits = made.context_lengths > 0, step.launch(made, seed=0)
    for seed in range(1, 4):
        assert np.array_equal(step.launch(made, seed)[live], logits[live]), f"seed {seed}"


class Tied(Experts):
    """Experts whose logits are equal: all, or one with the next."""

    def __init__(self, width: int, *, equals_all: bool) -> None:
        self._equals_all = equals_all
        super().__init__(mixture(RouterSpec(16, 3)), 16, width, "bf16")

    def _weights(self) -> dict[str, int]:
        for layer in range(len(self.spec.layers)):
            weight = self.model.weights[f"layers.{layer}.router.weight"]
            weight[1::2] = weight[::2]
            if self._equals_all:
                weight[:] = 0
        return super()._weights()

    def batch(self, contexts: list[int], seed: int = 1) -> Batch:
        return EmulatedStep.batch(self, contexts, seed)


@pytest.mark.parametrize("batch", ["8", "32"])
def test_of_equal_logits_the_lower_expert_wins_and_takes_all_sequences(batch: str) -> None:
    contexts = BATCHES[batch]
    step = Tied(width_of(contexts), equals_all=True)
    assert step.equals_general(contexts, seed=3, max_error=2 * MAX_ERROR)
    sequences = np.count_nonzero(contexts)
    for tokens, steps in step.expert_counts:
        assert tokens.tolist() == [sequences] * 3 + [0] * 13
        assert steps.tolist() == [1] * 3 + [0] * 13


def test_of_a_pair_with_equal_logits_the_lower_expert_is_chosen() -> None:
    step = Tied(8, equals_all=False)
    assert step.equals_general(BATCHES["3"], seed=4, max_error=2 * MAX_ERROR)
    for tokens, _ in step.expert_counts:
        assert (tokens[::2] >= tokens[1::2]).all()
        assert (tokens[::2] > tokens[1::2]).any()


def test_a_step_leaves_what_the_next_needs() -> None:
    step = step_of("two tiles a cluster", 8)
    for turn, batch in enumerate(("8", "1", "3", "8")):
        assert step.equals_general(BATCHES[batch], seed=10 + turn, max_error=2 * MAX_ERROR), batch


FORGOTTEN = {  # part of the kernel, what waits, what stands there instead
    "nothing": ("router", "", ""),
    "the list": (  # not the first layer's, before which experts have no number
        "expert_gate_up",
        "mbarrier_wait(shared_address(&routing.listed)",
        "if (stream.layer == 0) mbarrier_wait(shared_address(&routing.listed)",
    ),
    "the logits": ("router", "are_there &= bits != kNotYet;", ""),
    "to make logits unwritten": ("router", "store(c, c.layer + 1, sequence, row, kNotYet);", ""),
    "the residual": (
        "router",
        "wait_until_passed(passed, c.phase);",
        "",
    ),
    "activations of an expert": (
        "gated_chunks",
        "mbarrier_wait(full_",
        "if (false) mbarrier_wait(full_",
    ),
    "room for them": (
        "gated_chunks",
        "stream.wait_for_release(empty",
        "if (false) stream.wait_for_release(empty",
    ),
    "the other lane's sums": ("expert_down", "c.sync_warpgroup();", ""),
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_the_emulator_finds_what_was_forgotten(what: str, tmp_path: Path) -> None:
    shutil.copytree(SOURCE.parent, tmp_path, dirs_exist_ok=True)
    part, wait, without = FORGOTTEN[what]
    file = tmp_path / f"experts/{part}.cuh"
    text = file.read_text()
    assert wait in text
    file.write_text(text.replace(wait, without) if wait else text)
    router, inner, blocks = MODELS["three blocks of K"]
    step = Experts(mixture(router, inner), blocks, 8, "bf16", folder=tmp_path)

    def ends_well(seed: int) -> bool:
        try:
            return step.equals_general(BATCHES["8"], seed, max_error=2 * MAX_ERROR)
        except DidNotEnd:
            return False

    assert all(ends_well(seed) for seed in range(8)) == (not wait)
