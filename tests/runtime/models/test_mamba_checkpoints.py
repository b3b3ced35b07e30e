"""Hybrids of Mamba-2 as they are served: each family's formula, and answers that nothing else changes."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from float64_decoder import decode
from random_model import new_cache, step
from safetensors.numpy import load_file, save_file

from wisp_plan.families.config import parse_config
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.startup import start
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.ops.cpu.ops import CpuOps

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from test_engine_model import TINY, answers, mixed_requests

SHARED = TINY | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
NEMOTRON = SHARED | {
    "architectures": ["NemotronHForCausalLM"],
    "mlp_hidden_act": "relu2",
    "mamba_num_heads": 6,
    "mamba_head_dim": 8,
    "ssm_state_size": 16,
    "n_groups": 2,
    "layer_norm_epsilon": 1e-5,
    "time_step_limit": [0.0, math.inf],
}
GRANITE = SHARED | {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "shared_intermediate_size": 48,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "embedding_multiplier": 5,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 1.5,
}
FALCON = SHARED | {
    "architectures": ["FalconH1ForCausalLM"],
    "mamba_d_ssm": 48,
    "mamba_n_heads": 6,
    "mamba_d_state": 16,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.7,
    "key_multiplier": 0.8,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.9, 0.8, 0.7, 1.1, 0.6],
    "mlp_multipliers": [0.8, 0.5],
}
RELU2_EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
}
CONFIGS = {
    "nemotron_h": NEMOTRON | {"hybrid_override_pattern": "M-*M-", "num_hidden_layers": 5},
    "nemotron_h, experts": NEMOTRON
    | RELU2_EXPERTS
    | {"hybrid_override_pattern": "MEM*E", "num_hidden_layers": 5},
    "nemotron_h, latent experts": NEMOTRON
    | RELU2_EXPERTS
    | {"hybrid_override_pattern": "ME*ME", "num_hidden_layers": 5, "moe_latent_size": 16},
    "granitemoehybrid": GRANITE | {"num_local_experts": 6, "num_experts_per_tok": 2},
    "granitemoehybrid, dense": GRANITE | {"num_local_experts": 0, "position_embedding_type": "rope"},
    "falcon_h1": FALCON,
    "falcon_h1, normed": FALCON | {"mamba_rms_norm": True, "mamba_n_groups": 3, "tie_word_embeddings": True},
}
OPS = CpuOps(threads=1)


def write(folder, config):
    """Write a random model whose states last for some tokens up to the complete prompt."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    random, tensors = np.random.default_rng(7), {}
    for tensor in expected_tensors(parse_config(config)):
        values = random.standard_normal(tensor.shape) / np.sqrt(tensor.shape[-1])
        if len(tensor.shape) == 1:
            mean = {"dt_bias": -2.0, "correction_bias": 0.0}
            ending = next((ending for ending in mean if tensor.name.endswith(ending)), "")
            values = mean.get(ending, 1.0) + 0.3 * random.standard_normal(tensor.shape)
        tensors[tensor.name] = values.astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


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
