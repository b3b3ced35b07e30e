"""gpt-oss in the persistent kernel on an emulated GPU: sinks, windows in turn, biases, experts in MXFP4."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from emulated_kernel import HERE, needs_compiler
from emulated_step import BF16, SOURCE, TOKENS, EmulatedStep
from test_emulated_experts import MAX_ERROR, Experts, width_of
from test_emulated_step import cosines

from wisp_plan.presets import shape_spec
from wisp_plan.quantization.packed_format import EXPERT_FORMATS
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Batch

pytestmark = needs_compiler

WINDOW = 20
SIZES = {  # experts, chosen, inner size, hidden size, thread blocks
    "two tiles a cluster": (16, 4, 512, 256, 20),
    "three tiles": (
        40,
        4,
        320,
        448,
        20,
    ),  # as 2,880: an odd number of 64 channels, a 64 behind whole blocks of 256
}
BATCHES = {
    "1": [20],
    "3": [5, 0, 33],
    "8": [0, 16, 17, 33, 0, WINDOW, WINDOW + 1, 100],
    "split": [1100, WINDOW - 1, 290],
    "16": [9 + 2 * n for n in range(16)],
    "32": [3 + 2 * n for n in range(32)],
}
PARTS = ("sinks", "qkv.bias", "output.bias", "router.bias", "experts.gate_up.bias", "experts.down.bias")


def small_gpt_oss(experts: int, chosen: int, inner: int, hidden: int, layers: int) -> ModelSpec:
    """Return a gpt-oss of other sizes: eight query heads of 64 a KV head, as all have."""
    spec = shape_spec("gpt-oss-20b")
    attention, ffn = spec.mixers(AttentionSpec)[0], spec.ffns(MoeSpec)[0]
    attention = replace(attention, heads=16, kv_heads=2)
    ffn = replace(ffn, router=replace(ffn.router, experts=experts, chosen=chosen), inner=inner)
    windows = WINDOW, None
    own = (
        replace(layer, mixer=replace(attention, window=windows[index % 2]), ffn=ffn)
        for index, layer in enumerate(spec.layers[:layers])
    )
    fields = {"hidden": hidden, "vocab": 300, "max_context": 4096, "quantization": None}
    return replace(spec, layers=tuple(own), **fields)


class GptOss(Experts):
    """A small gpt-oss whose sinks, biases and clamps all matter; experts in a format of their own.

    Sinks deviate by so much that a few weigh as much as the 300 keys of a sequence in splits.
    """

    def __init__(self, name: str, width: int, expert_format: str = "mxfp4_fields") -> None:
        layers = 3 if width <= 16 else 2  # wide steps take a second of CPU a layer
        *sizes, blocks = SIZES[name]
        self._formats, self._of_experts = {}, {"layers": EXPERT_FORMATS.get(expert_format)}
        options = (f"-DWISP_EXPERT_FORMAT={expert_format}", f"-DWIDTH={width}", f"-I{SOURCE.parent}")
        spec = small_gpt_oss(*sizes, layers)
        EmulatedStep.__init__(self, spec, blocks, options, HERE / "quantized_decode.cu")

    def _weights(self) -> dict[str, int]:
        random = np.random.default_rng(11)
        for name, deviation in {"sinks": 12.0, "router.bias": 0.5, "experts.gate_up.bias": 4.0}.items():
            for layer in range(len(self.spec.layers)):
                weight = self.model.weights[f"layers.{layer}.{name}"]
                weight[:] = (deviation * random.standard_normal(weight.shape)).astype(BF16)
        for layer in range(len(self.spec.layers)):
            for name in ("qkv.bias", "output.bias", "experts.down.bias"):
                weight = self.model.weights[f"layers.{layer}.{name}"]
                weight[:] = random.standard_normal(weight.shape).astype(BF16)
        return super()._weights()

    def batch(self, contexts: list[int], seed: int = 1) -> Batch:
        """As others; blocks behind the windows have been given back, and tables name some other."""
        made = super().batch(contexts, seed)
        for row, context in enumerate(contexts):
            made.block_tables[row, : max(0, context - WINDOW) // TOKENS] = 0
        return made

    def equals_general(self, contexts: list[int], seed: int, max_error: float = MAX_ERROR) -> bool:
        """Say so of logits and counts, and of both caches: new tokens alike, all others as they were."""
        batch, live = self.batch(contexts), np.array(contexts) > 0
        self.restore()
        before = [[array.copy() for array in group] for group in self.groups]
        self.model.expert_load.counts[:] = self.expert_counts[:] = 0
        expected, got = self.general(batch), self.launch(batch, seed)[live]
        found = [cosines(expected, got).min()]
        for index, group in enumerate(self.groups):
            blocks, offsets = np.divmod(batch.of_group(index).slots[live], TOKENS)
            for old, theirs, ours in zip(before[index], self.cache.groups[index], group, strict=True):
                new = ours[:, blocks, :, offsets]
                found.append(cosines(theirs[:, blocks, :, offsets], new).min())
                old[:, blocks, :, offsets] = new
                if not np.array_equal(old.view(np.uint16), ours.view(np.uint16)):
                    return False
        counts = self.model.expert_load.counts
        is_clean = not self.exchanged["counters"].any() and np.array_equal(self.expert_counts, counts)
        return bool(min(found) > 1 - max_error) and is_clean

    def restore(self) -> None:
        """Give the emulated GPU the general path's caches."""
        for ours, theirs in zip(self.groups, self.cache.groups, strict=True):
            for array, other in zip(ours, theirs, strict=True):
                array[:] = other


@lru_cache(maxsize=2)
def step_of(name: str, width: int, expert_format: str = "mxfp4_fields") -> GptOss:
    return GptOss(name, width, expert_format)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("name", "expert_format"), [*((name, "mxfp4_fields") for name in SIZES), ("three tiles", "nvfp4")]
)
def test_a_step_equals_the_general_path(name: str, expert_format: str, batch: str) -> None:
    contexts = BATCHES[batch]
    assert step_of(name, width_of(contexts), expert_format).equals_general(contexts, seed=1)


def test_experts_in_bf16_equal_the_general_path() -> None:
    # bf16 leaves 6e-5; f16, to which quantized models round, 2e-5.
    assert step_of("three tiles", 8, "bf16").equals_general(BATCHES["8"], seed=2, max_error=2 * MAX_ERROR)


@pytest.mark.parametrize(
    ("name", "batch", "expert_format"),
    [
        ("two tiles a cluster", "8", "mxfp4_fields"),
        ("two tiles a cluster", "32", "mxfp4_fields"),
        ("three tiles", "8", "nvfp4"),  # f16 between the phases of experts, bf16 of the others
    ],
)
def test_the_order_of_events_changes_no_bit(name: str, batch: str, expert_format: str) -> None:
    step = step_of(name, width_of(BATCHES[batch]), expert_format)
    made = step.batch(BATCHES[batch])
    live, logits = made.context_lengths > 0, step.launch(made, seed=0)
    for seed in range(1, 4):
        assert np.array_equal(step.launch(made, seed)[live], logits[live]), f"seed {seed}"


@pytest.mark.parametrize("splits", [2, 5])
def test_layers_that_see_all_are_split_where_blocks_are_left_over(splits: int) -> None:
    step = step_of("two tiles a cluster", 8)
    batch = step.batch([300, 0, 140])
    step.restore()
    expected, got = step.general(batch), step.launch(batch, 3, parallel_splits=splits)[[0, 2]]
    assert cosines(expected, got).min() > 1 - MAX_ERROR


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_large_enough_to_be_missed(part: str) -> None:
    step = step_of("two tiles a cluster", 8)
    batch = step.batch(BATCHES["8"])
    whole, held = step.general(batch), {}
    for layer in range(len(step.spec.layers)):
        weight = step.model.weights[f"layers.{layer}.{part}"]
        held[layer], weight[:] = weight.copy(), 0
    without = step.general(batch)
    for layer, weight in held.items():
        step.model.weights[f"layers.{layer}.{part}"][:] = weight
    assert cosines(whole, without).min() < 1 - 5 * MAX_ERROR
