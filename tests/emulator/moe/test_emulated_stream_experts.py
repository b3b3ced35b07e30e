"""Experts of few tokens by Hopper's kernel on the emulated GPU: the bits of the portable kernels."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import test_emulated_mixture as mixtures
from emulated_gpu import EmulatedGpu, HostArray, imported, to_gpu
from emulated_kernel import needs_compiler
from emulated_mixture import BF16

from wisp_plan.memory.buffers.moe import moe
from wisp_plan.memory.step import StepSizes
from wisp_plan.presets import shape_spec
from wisp_plan.spec.ffn import Activation, has_gate
from wisp_runtime.ops.cuda.device import context_prefetch
from wisp_runtime.ops.cuda.moe.plan import Tile
from wisp_runtime.ops.protocol.moe import ExpertWeights

pytestmark = needs_compiler
COUNT, CHOSEN, HIDDEN, INNER = 4, 2, 320, 192
FORMATS = {
    "bf16": "stream_experts",
    "fp8_block": "stream_experts_fp8_block",
    "mxfp4_fields": "stream_experts_mxfp4_fields",
}


@cache
def wrappers() -> list[ModuleType]:
    """Import the wrappers, which share their classes."""
    with imported("moe.experts", "moe.sorting", "weights.packing", "weights.quantized") as found:
        return found


def held(experts: mixtures.Experts, permutation: str) -> tuple[Any, ...]:
    """Return the matrices as a GPU has them."""
    _, _, packing, quantized = wrappers()
    memory = to_gpu(experts.matrices)
    if experts.packed is None:
        storages = (HostArray(row.view(BF16)) for row in memory.host)
        return tuple(packing.PackedMatrix(storage, *experts.shape, permutation) for storage in storages)
    return tuple(
        quantized.QuantizedStorage(HostArray(row), *experts.shape, permutation, experts.packed)
        for row in memory.host
    )


class Layer:
    """Experts, one more of which may be the shared one."""

    def __init__(
        self,
        name: str,
        activation: Activation = "silu",
        *,
        has_bias: bool = False,
        sizes: tuple[int, int] = (HIDDEN, INNER),
    ) -> None:
        self.hidden, inner = sizes
        is_gated = has_gate(activation)
        permutation = "gate_up_interleaved" if is_gated else "plain"
        first = mixtures.Experts(name, COUNT + 1, inner * (1 + is_gated), self.hidden, permutation)
        second = mixtures.Experts(name, COUNT + 1, self.hidden, inner, "plain")
        into, down = held(first, permutation), held(second, "plain")
        biases = [to_gpu(each.bias[:COUNT]) if has_bias else None for each in (first, second)]
        shared = None if has_bias else (into[COUNT], down[COUNT])
        self.weights = ExpertWeights(into[:COUNT], down[:COUNT], *biases, activation, shared)

    def multiply(
        self, gpu: EmulatedGpu, x: np.ndarray, *, has_shared: bool = False, width: int = 8
    ) -> np.ndarray:
        """Return the results of each position; a token's experts are those of its number."""
        experts_module, sorting, *_ = wrappers()
        tokens = len(x)
        table = np.array([[0, 3], [3, 1], [3, 0]], np.int32)[np.arange(tokens) % 3]  # expert 2 has no tokens
        ordered = sorting.sorted_pairs(gpu, to_gpu(table), COUNT, Tile(width), has_shared=has_shared)
        _, rows, tiles = mixtures.in_order(table, COUNT, width)
        if has_shared:
            rows = np.append(rows, np.arange(tokens))
            first = tokens * CHOSEN
            tiles = [*tiles, [COUNT, first, first + tokens, 0]]
        ordered.rows.host[:], ordered.tile_count.host[:] = rows, len(tiles)
        ordered.tiles.host[: len(tiles)] = tiles
        experts = experts_module.Experts(gpu)
        assert not has_shared or experts.joins_shared(self.weights)
        apart = to_gpu(np.pad(x, ((0, 0), (0, 8))))  # rows that do not touch
        return experts.multiply(apart[:, : self.hidden], self.weights, ordered).host.copy()


def tokens_of(count: int, hidden: int = HIDDEN) -> np.ndarray:
    """Return ``[count, hidden]`` bf16."""
    return np.random.default_rng(count).standard_normal((count, hidden)).astype(BF16)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Say whether all bits are equal; NaN is NaN."""
    return np.array_equal(np.nan_to_num(a.astype(np.float32)), np.nan_to_num(b.astype(np.float32)))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("activation", "tokens"), [("silu", 8), ("clamped_swiglu", 5), ("relu2", 3)])
def test_results_have_the_bits_of_the_portable_kernels(
    name: str, activation: Activation, tokens: int
) -> None:
    layer, x = Layer(name, activation, has_bias=True), tokens_of(tokens)
    x[1] = np.nan  # harms its own results alone
    hopper = EmulatedGpu(seed=tokens, hardware="hopper")
    found = layer.multiply(hopper, x)
    assert hopper.launches == [FORMATS[name]]
    assert same(found, layer.multiply(EmulatedGpu(), x))
    assert np.isnan(found.astype(np.float32)).sum() == CHOSEN * HIDDEN


def test_fields_are_streamed_for_many_tokens_too() -> None:
    sizes, x = (576, 192), tokens_of(40, 576)  # a whole tile of 256 columns, two, and a part of one
    layer, hopper = (
        Layer("mxfp4_fields", "clamped_swiglu", has_bias=True, sizes=sizes),
        EmulatedGpu(hardware="hopper"),
    )
    found = layer.multiply(hopper, x)
    assert hopper.launches == ["stream_experts_mxfp4_fields"]
    assert same(found, layer.multiply(EmulatedGpu(), x))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("sm_count", "seed"), [(1, 0), (3, 1), (40, 2)])
def test_any_number_of_blocks_reads_what_others_have_stored(name: str, sm_count: int, seed: int) -> None:
    """The shared expert's tile is one of all; counters are zero again for the next layer."""
    layer, hopper = Layer(name), EmulatedGpu(seed, hardware="hopper")
    hopper.sm_count = sm_count
    for tokens in (8, 1, 6):
        x = tokens_of(tokens)
        found = layer.multiply(hopper, x, has_shared=True)
        assert same(found, layer.multiply(EmulatedGpu(), x, has_shared=True))
        assert not hopper.buffer("moe.progress").any()
    assert hopper.launches == [FORMATS[name]] * 3


@pytest.mark.parametrize(
    ("name", "tokens", "sizes", "width"),
    [
        ("fp8_block", 9, (HIDDEN, INNER), 8),  # more tokens
        ("mxfp4_fields", 65, (HIDDEN, INNER), 8),
        ("mxfp4_fields", 8, (HIDDEN, INNER), 16),  # another tile
        ("fp8_block", 1, (HIDDEN + 8, INNER), 8),  # K is no multiple of 64
        ("bf16", 1, (HIDDEN, INNER + 8), 8),
        ("int4", 1, (HIDDEN, INNER), 8),  # a format that was not measured
    ],
)
def test_others_are_multiplied_by_the_portable_kernels(
    name: str, tokens: int, sizes: tuple[int, int], width: int
) -> None:
    layer, x = Layer(name, sizes=sizes), tokens_of(tokens, sizes[0])
    hopper = EmulatedGpu(hardware="hopper")
    found = layer.multiply(hopper, x, width=width)
    assert len(hopper.launches) == 2
    assert same(found, layer.multiply(EmulatedGpu(), x, width=width))


def test_beside_other_processes_no_block_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_prefetch, "co_running_processes", lambda index: 1)
    layer, x, hopper = Layer("mxfp4_fields"), tokens_of(8), EmulatedGpu(hardware="hopper")
    found = layer.multiply(hopper, x)
    assert len(hopper.launches) == 2
    assert same(found, layer.multiply(EmulatedGpu(), x))


def test_a_counter_of_every_tile_is_declared() -> None:
    spec = shape_spec("qwen3.6-35b-a3b")
    for max_tokens in (1, 8, 64):
        declared = moe(spec, StepSizes(max_tokens, 8, 4096, 16))
        tokens = min(max_tokens, 8)
        gpu = EmulatedGpu(declared=declared, hardware="hopper")
        Layer("fp8_block").multiply(gpu, tokens_of(tokens), has_shared=True)
        sizes = {buffer.name: buffer.shape[0] for buffer in declared}
        assert sizes["moe.progress"] == sizes["moe.tiles"]
