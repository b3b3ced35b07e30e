"""Gated DeltaNet hybrids as they are served: each family's formula in float64, from the same file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.startup import start
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "models")]
from float64_hybrid import Float64Hybrid
from test_engine_model import TINY, answers, write_tiny

HYBRID = TINY | {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "rms_norm_eps": 1e-6,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "norm_topk_prob": True,
}
FAMILIES = {
    "qwen3_5": HYBRID | {"architectures": ["Qwen3_5ForCausalLM"]},
    "qwen3_5, attention first and last": HYBRID
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
    "qwen3_5_moe": HYBRID | EXPERTS | {"architectures": ["Qwen3_5MoeForCausalLM"]},
    "qwen3_next": HYBRID | EXPERTS | {"architectures": ["Qwen3NextForCausalLM"], "mlp_only_layers": [1]},
}


def varied(name, value, random):
    """Return vectors that differ by channel: norms about their middle, decays of short and of long memory."""
    if value.ndim > 1:
        return value
    if name.endswith("A_log"):
        return random.normal(-1, 1.5, value.shape).astype(np.float32)
    middle = 1.0 if name.endswith(("linear_attn.norm.weight", "dt_bias")) else 0.0
    return random.normal(middle, 0.3, value.shape).astype(np.float32)


@pytest.fixture(scope="module", params=FAMILIES)
def served(request, tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("hybrids") / "m", config=FAMILIES[request.param])
    file, random = folder / "model.safetensors", np.random.default_rng(3)
    save_file({name: varied(name, value, random) for name, value in load_file(file).items()}, file)
    config = ServeConfig(str(folder), threads=1, block_tokens=4, max_step_tokens=96, max_concurrent=4)
    return start(config, lambda _: None), Float64Hybrid(folder)


def test_a_served_hybrid_equals_its_formula_in_float64(served):
    engine, reference = served
    lengths = (1, 3, 63, 64, 65, 130)
    prompts = [np.random.default_rng(n).integers(0, 96, n).tolist() for n in lengths]
    greedy = SamplingParams(temperature=0.0)
    requests = [Submit(str(n), tuple(prompt), 6, greedy, ignore_eos=True) for n, prompt in enumerate(prompts)]
    said = set()
    for n, tokens in answers(engine, requests)[0].items():
        for count, token in enumerate(tokens):
            logits = reference.logits(prompts[int(n)] + tokens[:count])
            assert logits.max() - logits[token] < 1e-4
        said |= set(tokens)
    assert len(said) > 8, "the model says the same to everyone"
