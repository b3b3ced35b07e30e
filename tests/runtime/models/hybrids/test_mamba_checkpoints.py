"""Hybrids of Mamba-2 as they are served: each family's formula, and answers that nothing else changes."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from wisp_plan.weights.declaration import declare
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.startup import start
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.ops.cpu.ops import CpuOps

sys.path += [str(folder) for folder in (Path(__file__).parent, Path(__file__).parents[1])]
sys.path.append(str(Path(__file__).parents[2] / "engine"))
from float64_decoder import decode
from mamba_checkpoints import CONFIGS, write
from random_model import new_cache, step
from test_engine_model import answers, mixed_requests

OPS = CpuOps(threads=1)


def weights_of(folder, spec):
    """Return the weights by the model's names, put together from the file's tensors."""
    tensors, weights = load_file(folder / "model.safetensors"), {}
    for weight in declare(spec):
        held = weights[weight.name] = np.full(weight.shape, np.nan)
        for source in weight.sources:
            part = tensors[source.tensor].reshape(source.view or source.shape)[np.ix_(*source.slices)]
            at = source.at[: len(source.at) - part.ndim], source.at[len(source.at) - part.ndim :]
            spans = (slice(first, first + count) for first, count in zip(at[1], part.shape, strict=True))
            held[(*at[0], *spans)] = part
        assert np.isfinite(held).all(), weight.name
    return weights


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp("mamba") / "model", CONFIGS[request.param])


@pytest.mark.parametrize("bounds", [(0, 70), (0, 1, 64, 65, 66, 70)], ids=str)
def test_a_checkpoint_gives_the_logits_of_its_formulas_in_float64(folder, bounds):
    spec = read_spec(folder)
    model, tokens = load_model(folder, spec, OPS), np.random.default_rng(1).integers(0, 96, 70)
    expected, _ = decode(spec, weights_of(folder, spec), tokens)
    cache = new_cache(spec)
    assert np.abs(expected).max() > 1
    for first, last in pairwise(bounds):
        logits = step(model, cache, [(0, first, tokens[first:last])])
        np.testing.assert_allclose(logits, expected[first:last], atol=2e-5 * np.abs(expected).max())


class OneBuffer(CpuOps):
    """A CPU on which a linear map overwrites the last one's result, as in a GPU's workspace."""

    buffer = np.empty(1 << 16, np.float32)

    def linear(self, x, weight, bias=None):
        found = super().linear(x, weight, bias)
        kept = self.buffer[: found.size].reshape(found.shape)
        kept[...] = found
        return kept

    def from_latent(self, x, weight, added=None):  # a GPU's has a buffer of its own
        return super().from_latent(x, weight, None if added is None else added.copy())


def test_results_are_read_before_the_next_of_their_kind_overwrites_them(folder):
    spec, tokens = read_spec(folder), np.arange(70)
    apart, shared = (
        step(load_model(folder, spec, ops), new_cache(spec), [(0, 0, tokens)])
        for ops in (OPS, OneBuffer(threads=1))
    )
    assert np.array_equal(apart, shared)


def test_tokens_far_back_still_count(folder):
    model, tokens = load_model(folder, read_spec(folder), OPS), np.random.default_rng(1).integers(0, 96, 70)
    other = np.concatenate([(tokens[:1] + 1) % 96, tokens[1:]])
    last = [step(model, new_cache(model.spec), [(0, 0, some)], [69]) for some in (tokens, other)]
    assert np.abs(last[0] - last[1]).max() > 1e-4


@pytest.fixture(scope="module")
def engine(folder):
    settings = {"threads": 1, "block_tokens": 4, "max_step_tokens": 64, "max_concurrent": 8}
    return start(ServeConfig(str(folder), **settings), lambda _: None)


@pytest.fixture(scope="module")
def alone(engine):
    """Requests, some of which go on from another's prompt and answer, and their answers alone."""
    got, requests = {}, mixed_requests()[::2]
    for request in requests:
        got |= answers(engine, [request], reuses_prefixes=False)[0]
    for request in requests[4:]:
        prompt = (*request.prompt, *got[request.request_id], 7, 8)
        requests.append(Submit(f"{request.request_id}-again", prompt, 9, SamplingParams(temperature=0.0)))
        got |= answers(engine, requests[-1:], reuses_prefixes=False)[0]
    return requests, got


@pytest.mark.parametrize("limits", [{}, {"max_step_tokens": 9}, {"max_concurrent": 2}], ids=str)
def test_batches_chunks_preemption_and_hits_change_no_token(engine, alone, limits):
    (requests, expected), sizes = alone, engine.scheduler.limits.cache
    pools = tuple(replace(pool, blocks=30) for pool in sizes.pools)  # two of the longest: preempts
    cache = replace(sizes, pools=pools, snapshots=20)
    together, load = answers(engine, requests, cache=cache, **limits)
    assert together == expected
    assert load.preemptions_total > 0 or limits
    assert len({tuple(tokens) for tokens in expected.values()}) > len(expected) - 3
