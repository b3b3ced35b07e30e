"""The switches of the family, on tiny random models: consistent with themselves, however a batch is cut.

No claim of parity with other implementations: for Llama that is ``test_golden.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import pytest
from spec_changes import attention_of, changed

from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import dense_decoder
from wisp_plan.spec.rope import RopeSpec
from wisp_plan.weights.declaration import declare
from wisp_runtime.batch import Batch
from wisp_runtime.errors import ModelUnsupported
from wisp_runtime.layers.cache import kv_cache
from wisp_runtime.layers.rotary import rope_frequencies
from wisp_runtime.models.registry import model_class
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.weights.arena import Weights

OPS = CpuOps(threads=1)
TB = 4
SWITCHES = {
    "llama": {},
    "tied": {"ties_embeddings": True},
    "mistral": {"family": "mistral", "window": 5},
    "qwen2": {"family": "qwen2", "has_qkv_bias": True},
    "qwen3": {"family": "qwen3", "has_qk_norm": True},
    "all biases": {"has_qkv_bias": True, "has_output_bias": True, "has_bias": True},
}


PLAIN = dense_decoder(
    "LlamaForCausalLM",
    "llama",
    layers=2,
    hidden=40,
    inner=56,
    vocab=90,
    max_context=64,
    attention=AttentionSpec(4, 2, 8, RopeSpec(rotary_size=8)),
    norm_eps=1e-5,
)


def make(**switches):
    return of_spec(changed(PLAIN, **switches))


def of_spec(spec):
    """A model of random weights."""
    declared, random = declare(spec), np.random.default_rng(6)
    weights = Weights(OPS, declared)
    for weight in declared:
        for source in weight.sources:
            values = random.standard_normal(source.shape).astype(np.float32)
            destination = weights.destination(weight.name, source.at, source.shape, "F32")
            OPS.store(destination, values * np.float32(0.2 if values.ndim == 2 else 1))
    return model_class(spec)(spec, weights, OPS)


def run(model, chunks, cache):
    """Run sequence 0 in blocks 0.. over ``chunks`` of (first, tokens), one a step; return all logits."""
    logits = []
    for first, tokens in chunks:
        n, positions = len(tokens), np.arange(first, first + len(tokens))
        batch = Batch(
            tokens=np.array(tokens, np.int32),
            positions=positions.astype(np.int32),
            slots=positions.astype(np.int64),
            query_starts=np.array([0, n], np.int32),
            context_lengths=np.array([first + n], np.int32),
            block_tables=np.arange(16, dtype=np.int32)[None],
            logit_rows=np.arange(n),
            query_starts_host=(0, n),
            context_lengths_host=(first + n,),
        )
        logits.append(model.forward(batch, cache).logits)
    return np.concatenate(logits)


def empty_cache(spec):
    attention = attention_of(spec)
    shape = (len(spec.layers), 16, attention.kv_heads, TB, attention.head_size)
    return kv_cache(OPS.kv_arena(shape), OPS.kv_arena(shape), TB)


TOKENS = [3, 14, 15, 9, 26, 5, 35, 89, 79, 3, 23, 84, 62]


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("bounds", [(0, 1, 13), (0, 12, 13), (0, 5, 8, 13), tuple(range(14))])
def test_logits_do_not_depend_on_how_a_prompt_is_chunked(name, bounds):
    model = make(**SWITCHES[name])
    full = run(model, [(0, TOKENS)], empty_cache(model.spec))
    chunks = [(first, TOKENS[first:last]) for first, last in pairwise(bounds)]
    found = run(model, chunks, empty_cache(model.spec))
    np.testing.assert_allclose(found, full, atol=5e-5)


@pytest.mark.parametrize("name", [name for name in SWITCHES if name not in ("llama", "tied")])
def test_a_switch_changes_what_the_model_computes(name):
    plain, switched = make(), make(**SWITCHES[name])
    found = [run(model, [(0, TOKENS)], empty_cache(model.spec)) for model in (plain, switched)]
    assert not np.allclose(found[0], found[1], atol=1e-3)


def test_a_token_outside_the_window_of_every_layer_is_forgotten():
    model = make(**SWITCHES["mistral"])  # two layers of 5: the last token reaches back 8 positions
    changed = [TOKENS[0] + 1, *TOKENS[1:]]
    before, after = (run(model, [(0, some)], empty_cache(model.spec)) for some in (TOKENS, changed))
    np.testing.assert_array_equal(before[9:], after[9:])
    assert not np.allclose(before[8], after[8])


def test_a_step_that_wants_no_logits_gives_none():
    model = make()
    cache = empty_cache(model.spec)
    batch = Batch(
        tokens=np.array([1, 2], np.int32),
        positions=np.array([0, 1], np.int32),
        slots=np.array([0, 1]),
        query_starts=np.array([0, 2], np.int32),
        context_lengths=np.array([2], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        logit_rows=np.zeros(0, np.int64),
        query_starts_host=(0, 2),
        context_lengths_host=(2,),
    )
    assert model.forward(batch, cache).logits.shape == (0, 90)
    assert cache.keys.any()


class Step(NamedTuple):
    """Chunks of sequences (sequence, first token, number of tokens), and the rows with logits."""

    chunks: tuple[tuple[int, int, int], ...]
    rows: tuple[int, ...]

    def batch(self, rows=None):
        """Return the batch; sequence n is TOKENS shifted by n, in blocks 4 n to 4 n + 3."""
        tables = np.arange(16, dtype=np.int32).reshape(4, 4)
        at = [(which, n) for which, first, count in self.chunks for n in range(first, first + count)]
        starts = (0, *accumulate(count for _, _, count in self.chunks))
        contexts = tuple(first + count for _, first, count in self.chunks)
        return Batch(
            tokens=np.array([(TOKENS[which:] + TOKENS)[n] for which, n in at], np.int32),
            positions=np.array([n for _, n in at], np.int32),
            slots=np.array([which * 4 * TB + n for which, n in at]),
            query_starts=np.array(starts, np.int32),
            context_lengths=np.array(contexts, np.int32),
            block_tables=tables[[which for which, _, _ in self.chunks]],
            logit_rows=np.array(self.rows if rows is None else rows, np.int64),
            query_starts_host=starts,
            context_lengths_host=contexts,
        )


STEPS = {
    "prompt": [Step(((0, 0, 13),), (12,))],
    "several rows of a prompt": [Step(((0, 0, 13),), (0, 5, 12))],
    "chunks": [  # chunks without logits have one unused row: engine/execution/staging.py
        Step(((2, 0, 6),), (5,)),
        Step(((2, 6, 6),), (5,)),
        Step(((2, 12, 1),), (0,)),
    ],
    "no row": [Step(((1, 0, 6),), ()), Step(((1, 6, 7),), (6,))],
    "mixed": [
        Step(((0, 0, 12), (1, 0, 5)), (11, 16)),
        Step(((0, 12, 1), (1, 5, 1), (2, 0, 7), (3, 0, 13)), (0, 1, 21)),  # sequence 2 has none yet
        Step(((1, 6, 1), (2, 7, 6), (3, 13, 1)), (0, 6, 7)),
        Step(((1, 7, 1), (3, 14, 1)), (0, 1)),
    ],
}


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_logits_of_some_rows_equal_those_of_all_rows(name, steps):
    model, streams = make(**SWITCHES[name]), []
    ours, full, probed = (empty_cache(model.spec) for _ in range(3))
    for step in steps:
        count = sum(tokens for _, _, tokens in step.chunks)
        found = model.forward(step.batch(), ours).logits
        every = model.forward(step.batch(rows=range(count)), full).logits
        shown = model.forward(step.batch(), probed, lambda _, stream: streams.append(stream)).logits
        assert found.shape == shown.shape == (len(step.rows), 90)
        # float32 GEMMs of fewer rows may add in another order
        np.testing.assert_allclose(found, every[list(step.rows)], atol=5e-5)
        np.testing.assert_allclose(shown, every[list(step.rows)], atol=5e-5)
        assert len(streams[-1]) == count
        for cache in (ours, probed):  # of every token, with logits or not
            np.testing.assert_array_equal(cache.keys, full.keys)
            np.testing.assert_array_equal(cache.values, full.values)
            assert cache.keys[-1].any(axis=(1, 3)).sum() == len(written(steps, step))


def written(steps, last):
    """Return the tokens in the cache after ``last``, as (sequence, position)."""
    done = steps[: steps.index(last) + 1]
    return {
        (which, n)
        for step in done
        for which, first, count in step.chunks
        for n in range(first, first + count)
    }


@pytest.mark.parametrize(
    ("rows", "probe", "expect"),
    [
        ((12,), None, [13] * 5 + [1] * 4),
        ((3, 12), None, [13] * 5 + [2] * 4),
        (range(13), None, [13] * 9),
        ((12,), lambda *_: None, [13] * 8 + [1]),  # it is shown the full stream
    ],
)
def test_the_last_layer_multiplies_only_the_wanted_rows_after_attention(monkeypatch, rows, probe, expect):
    model, product, take, counts, taken = make(), OPS.linear, OPS.gather_rows, [], []

    def linear(x, *others):
        counts.append(len(x))
        return product(x, *others)

    def gather_rows(x, rows):
        taken.append(len(rows))
        return take(x, rows)

    monkeypatch.setattr(OPS, "linear", linear)
    monkeypatch.setattr(OPS, "gather_rows", gather_rows)
    model.forward(STEPS["prompt"][0].batch(rows), empty_cache(model.spec), probe)
    assert counts == expect  # of two layers: qkv, output, gate and up, down; then the logits
    assert taken == ([] if len(rows) == 13 else [len(rows)])  # a step of decodes has no launch more


def test_rope_scaling_slows_what_it_should():
    plain = rope_frequencies(RopeSpec(theta=500000.0), 128)
    linear = rope_frequencies(RopeSpec(theta=500000.0, kind="linear", factor=4.0), 128)
    np.testing.assert_allclose(linear, plain / 4)
    llama3 = RopeSpec(500000.0, "llama3", 8.0, 1.0, 4.0, original_max_context=8192)
    scaled = rope_frequencies(llama3, 128)
    wavelengths = 2 * np.pi / plain
    np.testing.assert_allclose(scaled[wavelengths < 8192 / 4], plain[wavelengths < 8192 / 4])
    np.testing.assert_allclose(scaled[wavelengths > 8192], plain[wavelengths > 8192] / 8)
    between = (wavelengths > 8192 / 4) & (wavelengths < 8192)
    assert ((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 8)).all()


@dataclass(frozen=True)
class Unknown:
    """A mixer, or a feed-forward block, that nobody wrote code for."""


@pytest.mark.parametrize("part", ["mixer", "ffn"])
def test_a_layer_without_code_is_refused(part):
    strange = replace(PLAIN.layers[0], **{part: Unknown()})
    with pytest.raises(ModelUnsupported, match="no code for layers with Unknown; there is code for"):
        model_class(replace(PLAIN, layers=(PLAIN.layers[0], strange)))
