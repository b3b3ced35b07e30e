"""The switches of the family, on tiny random models: consistent with themselves, however a batch is cut.

No claim of parity with other implementations: for Llama that is ``test_golden.py``.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from wisp_plan.spec import ModelSpec, RopeSpec
from wisp_runtime.batch import Batch
from wisp_runtime.errors import ModelUnsupported
from wisp_runtime.layers.rotary import rope_frequencies
from wisp_runtime.memory.kv import KVCache
from wisp_runtime.memory.weights import Weights
from wisp_runtime.models.families import model_class
from wisp_runtime.ops.cpu import CpuOps

OPS = CpuOps(threads=1)
TB = 4
SWITCHES = {
    "llama": {},
    "tied": {"ties_embeddings": True},
    "mistral": {"family": "mistral", "sliding_window": 5},
    "qwen2": {"family": "qwen2", "has_qkv_bias": True},
    "qwen3": {"family": "qwen3", "has_qk_norm": True},
    "all biases": {"has_qkv_bias": True, "has_output_bias": True, "has_mlp_bias": True},
}


def make(**switches):
    size = {"layers": 2, "hidden": 40, "mlp": 56, "vocab": 90, "heads": 4, "kv_heads": 2, "head_size": 8}
    fixed = {"architecture": "LlamaForCausalLM", "family": "llama", "max_context": 64, "norm_eps": 1e-5}
    spec = ModelSpec(**(size | fixed | {"rope": RopeSpec(rotary_size=8)} | switches))
    family = model_class(spec)
    parameters, random = list(family.parameters(spec)), np.random.default_rng(6)
    weights = Weights(OPS, parameters)
    for parameter in parameters:
        for part in parameter.parts:
            values = random.standard_normal((part.rows, *parameter.shape[1:])).astype(np.float32)
            place = weights.place(part.tensor, 0, part.rows, "F32")
            OPS.store(place, values * np.float32(0.2 if values.ndim == 2 else 1))
    return family(spec, weights, OPS)


def run(model, pieces, cache):
    """Run sequence 0 in blocks 0.. over ``pieces`` of (first, tokens), one a step; return all logits."""
    logits = []
    for first, tokens in pieces:
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
        logits.append(model.forward(batch, cache))
    return np.concatenate(logits)


def empty_cache(spec):
    shape = (spec.layers, 16, spec.kv_heads, TB, spec.head_size)
    return KVCache(OPS.kv_arena(shape), OPS.kv_arena(shape), TB)


TOKENS = [3, 14, 15, 9, 26, 5, 35, 89, 79, 3, 23, 84, 62]


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("cuts", [(0, 1, 13), (0, 12, 13), (0, 5, 8, 13), tuple(range(14))])
def test_however_a_prompt_is_cut_the_logits_are_the_same(name, cuts):
    model = make(**SWITCHES[name])
    whole = run(model, [(0, TOKENS)], empty_cache(model.spec))
    pieces = [(first, TOKENS[first:last]) for first, last in pairwise(cuts)]
    found = run(model, pieces, empty_cache(model.spec))
    np.testing.assert_allclose(found, whole, atol=5e-5)


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
    assert model.forward(batch, cache).shape == (0, 90)
    assert cache.keys.any()


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


def test_a_family_without_code_is_refused():
    with pytest.raises(ModelUnsupported, match="no code for models of the family 'mamba'"):
        make(family="mamba")
