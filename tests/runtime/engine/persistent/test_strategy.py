"""Selection of the decode path, and the self-test that rejects a kernel with other numbers."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from test_decoder import OPS, PLAIN, make, of_spec

from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.cache import CacheSizes, one_pool
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_runtime.batch import StepKind
from wisp_runtime.engine.execution.forward import ForwardPass
from wisp_runtime.engine.persistent import strategy as strategies
from wisp_runtime.engine.persistent.strategy import DecodeStrategy, select_strategy
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.errors import ConfigError, KernelNotCompiled
from wisp_runtime.layers.cache import LayerCache, ModelCache, allocate_blocks
from wisp_runtime.models.load import random_model

NEVER_TIMED = "never timed"
LIMITS = Limits(one_pool(256, 16), max_step_tokens=64, max_concurrent=40, max_context=2048, vocab=90)


class Gpu:
    """The CPU's ops, called a GPU."""

    device = "cuda"

    def __getattr__(self, name):
        return getattr(OPS, name)


class Kernel:
    """A persistent kernel that computes as the model does, and then does ``wrong`` to the logits of a
    batch, but for steps of ``right_layers``."""

    max_sequences, faster_up_to, max_context_tokens = 32, 64, 1 << 20
    right_layers = ()

    def __init__(self, model, wrong):
        self.model, self.wrong, self.batches = model, wrong, []

    def takes(self, batch):
        return batch.kind is StepKind.DECODE and sum(batch.context_lengths_host) <= self.max_context_tokens

    def __call__(self, batch, groups, states, layers=None):
        assert states == ()
        self.batches.append(batch)
        caches = (
            LayerCache(
                tuple(array[layer // len(groups)] for array in groups[group]), group, encoding=encoding
            )
            for layer, encoding in enumerate(self.encodings)
            for group in (layer % len(groups),)
        )
        cache = ModelCache(16, tuple(caches), groups)
        logits = self.model.forward(batch, cache, layers=layers).logits
        return logits if layers in self.right_layers else self.wrong(logits, batch)

    def count_experts(self, counts):
        pass

    @property
    def rows(self):
        return [len(batch.tokens) for batch in self.batches]


@pytest.fixture(autouse=True)
def _any_model_is_large_enough(monkeypatch):
    monkeypatch.setattr(strategies, "_MIN_WEIGHT_BYTES", 0)


def right(logits, batch):
    return logits


def noisy(logits, batch):
    return logits + 5.0 * np.random.default_rng(1).standard_normal(logits.shape)


def slightly_noisy(logits, batch):
    random = np.random.default_rng(2)
    return logits + 2.0 * logits.std() * random.standard_normal(logits.shape)  # a cosine of 0.45


def mixture(layers):
    layer = replace(PLAIN.layers[0], ffn=MoeSpec(RouterSpec(6, 2), inner=64))
    spec = replace(PLAIN, hidden=128, layers=(layer,) * layers, max_context=LIMITS.max_context)
    return random_model(spec, OPS)


def selected(
    wrong=right,
    why=None,
    requested="auto",
    co_running=0,
    limits=LIMITS,
    best_up_to=1 << 20,
    kv="bf16",
    faster_up_to=64,
    model=None,
    right_layers=(),
):
    """The strategy, the forward pass that it is for, and the kernel that was tried."""
    model = model or make(max_context=LIMITS.max_context)
    kernel = Kernel(model, wrong)
    kernel.max_context_tokens, kernel.faster_up_to = best_up_to, faster_up_to
    kernel.right_layers = right_layers

    def persistent_kernel(spec, weights, rope, max_sequences, encodings, *, must_be_timed):
        assert max_sequences == limits.max_running
        if must_be_timed and not faster_up_to:
            return NEVER_TIMED
        kernel.encodings = encodings
        kernel.max_sequences = min(kernel.max_sequences, max_sequences)
        if isinstance(why, KernelNotCompiled):
            raise why
        return why or kernel

    gpu = Gpu()
    gpu.persistent_kernel = persistent_kernel
    cache = allocate_blocks(
        model.spec, OPS, blocks=limits.cache.pools[0].blocks, block_tokens=limits.block_tokens, kv=kv
    )
    forward_pass = ForwardPass(model, cache)
    return select_strategy(requested, forward_pass, gpu, limits, co_running), forward_pass, kernel


def test_a_step_that_gives_the_same_is_taken_after_it_was_tried_in_every_width():
    strategy, forward_pass, kernel = selected()
    assert (strategy.path, strategy.up_to, strategy.why) == ("persistent", 32, "")
    assert forward_pass.persistent is kernel
    assert kernel.rows == [1, 16, 32]
    assert strategy.to_dict() == {"decodePath": "persistent", "upTo": 32, "upToTokens": 1 << 20}
    assert [strategy.path_of(*step) for step in ((1, 9), (32, 1 << 20), (33, 40), (2, 2 << 20))] == [
        "persistent",
        "persistent",
        "general",
        "general",
    ]


def test_a_step_of_more_sequences_than_it_is_faster_for_is_general():
    strategy, _, kernel = selected(faster_up_to=16)
    assert (strategy.up_to, kernel.rows) == (16, [1, 16])
    assert [strategy.path_of(rows, 40) for rows in (16, 17)] == ["persistent", "general"]


@pytest.mark.parametrize("faster_up_to", [0, 16])
def test_a_kernel_that_is_asked_for_takes_as_many_sequences_as_it_can(monkeypatch, faster_up_to):
    monkeypatch.setattr(strategies, "_MIN_WEIGHT_BYTES", 1 << 30)  # nor is a model too small
    strategy, forward_pass, kernel = selected(requested="persistent", faster_up_to=faster_up_to)
    assert (strategy.path, strategy.up_to, kernel.rows) == ("persistent", 32, [1, 16, 32])
    assert forward_pass.persistent is kernel


def test_a_kernel_that_was_never_timed_is_not_chosen():
    strategy, forward_pass, _ = selected(faster_up_to=0)
    assert (strategy.path, strategy.why) == ("general", NEVER_TIMED)
    assert forward_pass.persistent is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"wrong": noisy}, "--decode-path persistent: a step of 1 in the persistent kernel differs"),
        ({"why": "its layers differ."}, "--decode-path persistent: its layers differ.$"),
        ({"why": KernelNotCompiled("not compiled. Run")}, "--decode-path persistent: not compiled. Run"),
        ({"co_running": 1}, "--decode-path persistent: another process uses the GPU through MPS"),
    ],
)
def test_a_kernel_that_is_asked_for_and_cannot_be_had_ends_the_start(settings, says):
    with pytest.raises(ConfigError, match=says):
        selected(requested="persistent", **settings)


def test_layers_with_windows_are_tried_in_both_pools():
    plain = make(max_context=LIMITS.max_context).spec
    mixer = plain.layers[0].mixer
    layers = (replace(plain.layers[0], mixer=replace(mixer, window=window)) for window in (40, None))
    limits = replace(
        LIMITS, cache=CacheSizes(16, tuple(replace(LIMITS.cache.pools[0], blocks=n) for n in (150, 256)))
    )
    strategy, forward_pass, kernel = selected(
        model=of_spec(replace(plain, layers=tuple(layers))), limits=limits
    )
    assert strategy.path == "persistent"
    assert len(forward_pass.cache.groups) == 2
    for batch in kernel.batches:
        (other,) = batch.other_groups
        assert max(batch.slots.max(), other.slots.max()) < 150 * 16
        assert np.array_equal(other.block_tables, batch.block_tables)


def test_a_cache_of_several_formats_takes_the_general_path():
    class FirstPlain(KvLayers):
        def of_layer(self, index, layers):
            return self.inner if index else self.plain

    strategy, forward_pass, kernel = selected(kv=FirstPlain.of("fp8", "cpu"))
    assert (strategy.path, strategy.why) == (
        "general",
        "keys and values are float32 and fp8: the persistent kernel reads one format in all layers",
    )
    assert forward_pass.persistent is None
    assert kernel.rows == []


def test_the_kernel_gets_the_encoding_of_each_layers_keys_and_values():
    strategy, _, kernel = selected(kv="fp8")
    assert strategy.path == "persistent"
    assert [encoding.format.name for encoding in kernel.encodings] == ["fp8"] * len(kernel.model.spec.layers)


def test_it_is_tried_on_rows_that_all_differ_one_of_more_tokens_than_a_part_of_attention_has():
    _, _, kernel = selected()
    batch = kernel.batches[-1]
    contexts = batch.context_lengths_host
    assert contexts[0] > 1024
    assert len(set(contexts)) == 32
    assert len({context % 16 for context in contexts}) == 16, "they end anywhere in a block"
    used = [set(row[: -(-n // 16)]) for row, n in zip(batch.block_tables.tolist(), contexts, strict=True)]
    assert sum(map(len, used)) == len(set().union(*used)), "two rows share a block"


@pytest.mark.parametrize(
    ("limits", "rows", "longest"),
    [
        ({"cache": one_pool(32, 16)}, [1, 16, 32], 16),  # a block for each
        ({"cache": one_pool(40, 16)}, [1, 16, 32], 16 * 9),  # what is to spare is the first one's
        ({"cache": one_pool(8, 16)}, [1, 8], 16),  # no step has more sequences than there are blocks
        ({"max_context": 20}, [1, 16, 32], 20),
        ({"max_concurrent": 3}, [1, 3], 1101),
        ({"max_step_tokens": 5}, [1, 5], 1101),
    ],
)
def test_a_small_cache_is_tried_as_far_as_it_goes(limits, rows, longest):
    limits = replace(LIMITS, **limits)
    strategy, _, kernel = selected(limits=limits)
    assert strategy.path == "persistent"
    assert kernel.rows == rows
    assert max(kernel.batches[-1].context_lengths_host) == longest


def first_part_alone(logits, batch):
    """As if a sequence's later parts were lost: wrong from 1,025 tokens on."""
    logits = logits.copy()
    logits[np.array(batch.context_lengths_host) > 1024] *= -1
    return logits


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"wrong": noisy}, "a step of 1 in the persistent kernel differs from the general path: cosine 0."),
        ({"wrong": lambda logits, _: logits * np.nan}, "differs from the general path: cosine nan"),
        (
            {"wrong": lambda logits, _: logits[::-1]},
            "a step of 16 in the persistent kernel differs",
        ),  # rows mixed up
        ({"wrong": first_part_alone}, "cosine -1.0000 after 1100 tokens"),
        ({"why": "its layers differ"}, "its layers differ"),
        ({"why": KernelNotCompiled("not compiled. Run")}, "not compiled. Run"),
        ({"requested": "general"}, "--decode-path general"),
        ({"limits": replace(LIMITS, cache=one_pool(256, 8))}, "KV blocks of 8 tokens"),
        ({"co_running": 1}, "another process uses the GPU through MPS"),
    ],
)
def test_anything_else_takes_the_general_path_and_says_why(settings, says):
    strategy, forward_pass, _ = selected(**settings)
    assert strategy.path == "general"
    assert says in strategy.why
    assert forward_pass.persistent is None
    assert strategy.to_dict() == {"decodePath": "general", "why": strategy.why}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, ""),
        ({"wrong": slightly_noisy, "right_layers": (2,)}, ""),  # experts at near-ties, layer after layer
        ({"wrong": slightly_noisy}, "a step of 1 through 2 layers in the persistent kernel differs"),
        (
            {"wrong": lambda logits, _: -logits, "right_layers": (2,)},
            "a step of 1 in the persistent kernel differs",
        ),
        (
            {"wrong": lambda logits, _: logits[::-1], "right_layers": (None,)},
            "a step of 16 through 2 layers in the persistent kernel differs",
        ),
    ],
)
def test_a_mixture_is_compared_closely_through_its_first_layers_and_roughly_through_all(settings, why):
    strategy, _, kernel = selected(model=mixture(6), **settings)
    assert why in strategy.why
    assert strategy.path == ("general" if why else "persistent")
    if not why:
        assert kernel.rows == [1, 16, 32] * 2


def test_a_server_that_started_again_after_a_hang_takes_the_general_path_and_says_why(monkeypatch):
    monkeypatch.setenv("WISP_DECODE_HANG", "block 41 waited at the grid's barrier")
    strategy, forward_pass, _ = selected()
    assert strategy.why.startswith("block 41 waited at the grid's barrier; the server started again")
    assert forward_pass.persistent is None


def test_a_small_model_takes_the_general_path(monkeypatch):
    monkeypatch.setattr(strategies, "_MIN_WEIGHT_BYTES", 1 << 30)
    assert selected()[0].why.startswith("the model is small")


def test_a_step_is_tried_also_beyond_the_context_up_to_which_it_is_best():
    strategy, _, kernel = selected(best_up_to=500)
    assert kernel.rows == [1, 16, 32]
    assert (strategy.up_to_tokens, kernel.max_context_tokens) == (500, 500)


DETERMINISTIC = replace(LIMITS, separate_prefill_decode=True, max_concurrent=24)


def test_in_deterministic_mode_a_step_has_no_limit_of_speed_and_state_says_so():
    strategy, _, kernel = selected(limits=DETERMINISTIC, best_up_to=500, faster_up_to=16)
    assert kernel.rows == [1, 16, 24]
    assert kernel.max_context_tokens == sys.maxsize
    assert strategy.path_of(24, 1 << 40) == "persistent"
    assert strategy.to_dict() == {"decodePath": "persistent", "deterministic": True, "upTo": 24}


def test_in_deterministic_mode_a_model_without_a_persistent_kernel_takes_the_general_path_for_all_steps():
    strategy, forward_pass, kernel = selected(limits=DETERMINISTIC, why="its layers differ", co_running=1)
    assert forward_pass.persistent is None
    assert kernel.rows == []
    state = {"decodePath": "general", "why": "its layers differ", "deterministic": True}
    assert strategy.to_dict() == state
    assert DecodeStrategy.from_dict(state).is_deterministic


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"wrong": noisy}, "decode kernel of this model: a step of 1 in the persistent kernel differs"),
        (
            {"why": KernelNotCompiled("not compiled. Run")},
            "decode kernel of this model: not compiled. Run",
        ),
        ({"co_running": 1}, "decode kernel of this model: another process uses the GPU through MPS"),
        (
            {"limits": replace(DETERMINISTIC, max_concurrent=40)},
            "at most 32 sequences; lower --max-concurrent",
        ),
    ],
)
def test_in_deterministic_mode_a_persistent_kernel_takes_all_steps_or_the_start_fails(settings, says):
    with pytest.raises(ConfigError, match=says):
        selected(**{"limits": DETERMINISTIC} | settings)


def test_the_cpu_says_that_it_is_one():
    strategy = select_strategy("auto", ForwardPass(make(), None), OPS, LIMITS, 0)
    assert (strategy.path, strategy.why) == ("reference", "the CPU computes op by op")
    with pytest.raises(ConfigError, match="--decode-path persistent: the CPU computes op by op"):
        select_strategy("persistent", ForwardPass(make(), None), OPS, LIMITS, 0)
