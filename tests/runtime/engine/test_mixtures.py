"""Mixtures of experts as they are served: each family's formula, and answers that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from float64_mixture import Float64Glm, Float64Mixtral, Float64Mixture
from safetensors.numpy import load_file, save_file
from test_engine_model import LIMITS, TINY, answers, answers_alone, mixed_requests, require_tokens, write_tiny

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine import startup
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

SHARED = TINY | {"num_hidden_layers": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
QWEN = {"num_experts": 8, "head_dim": 8, "norm_topk_prob": True, "rms_norm_eps": 1e-5}
FAMILIES = {
    "qwen3_moe": (SHARED | QWEN | {"architectures": ["Qwen3MoeForCausalLM"]}, Float64Mixture),
    "qwen3_moe, some layers dense": (
        SHARED
        | QWEN
        | {"architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 2, "norm_topk_prob": False},
        Float64Mixture,
    ),
    "mixtral": (
        SHARED | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "rope_theta": 1e6},
        Float64Mixtral,
    ),
    "glm4_moe": (
        SHARED
        | {
            "architectures": ["Glm4MoeForCausalLM"],
            "attention_bias": True,
            "use_qk_norm": True,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
        Float64Glm,
    ),
}


def started(folder, config):
    """Start a random model; corrections of scores decide some choices, and not all."""
    file, random = write_tiny(folder, config=config) / "model.safetensors", np.random.default_rng(1)
    changed = {
        name: random.normal(0, 0.1, value.shape).astype(np.float32) if "correction" in name else value
        for name, value in load_file(file).items()
    }
    save_file(changed, file)
    settings = {"threads": 1, "block_tokens": 4, "max_step_tokens": 48, "max_concurrent": 40}
    return startup.start(ServeConfig(str(folder), **settings), lambda _: None)


@pytest.fixture(scope="module", params=FAMILIES)
def served(request, tmp_path_factory):
    config, reference = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("mixtures") / "m"
    return started(folder, config), reference(folder)


def test_a_served_mixture_equals_its_formula_in_float64(served):
    engine, reference = served
    prompts = [np.random.default_rng(n).integers(0, 96, 3 + 11 * n).tolist() for n in range(4)]
    greedy = SamplingParams(temperature=0.0)
    requests = [Submit(str(n), tuple(prompts[n]), 10, greedy, ignore_eos=True) for n in range(4)]
    for n, tokens in answers(engine, requests)[0].items():
        for count, token in enumerate(tokens):
            logits = reference.logits(prompts[int(n)] + tokens[:count])
            assert logits.max() - logits[token] < 1e-4
    mixtures = {layer for layer, _ in reference.chosen}
    assert len(reference.chosen) > 2.9 * len(mixtures)


def test_a_request_alone_and_in_the_company_of_32_has_the_same_tokens(served):
    engine, _ = served
    random, sampled = np.random.default_rng(8), SamplingParams(temperature=0.9, seed=3)
    one = Submit("one", tuple(random.integers(0, 96, 21).tolist()), 16, sampled, ignore_eos=True)
    others = [
        Submit(f"{n}", tuple(random.integers(0, 96, 1 + 2 * n).tolist()), 16, sampled, ignore_eos=True)
        for n in range(32)
    ]
    alone, _ = answers(engine, [one])
    together, _ = answers(engine, [*others[:16], one, *others[16:]])
    assert together["one"] == alone["one"]


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_batch_chunks_preemption_and_reuse_change_no_token_of_a_mixture(served, limits):
    engine, _ = served
    requests = mixed_requests()
    require_tokens(engine, requests, answers_alone(engine, requests), **limits)
