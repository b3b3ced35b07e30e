"""Mixtures of experts in a config.json: which layers have them, and with which router."""

from __future__ import annotations

import pytest

from wisp_plan.errors import ConfigInvalid
from wisp_plan.families.config import parse_config
from wisp_plan.memory.cache import kv_bytes_per_token
from wisp_plan.presets import shape_config, shape_spec
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.sizes import active_parameters

GLM = RouterSpec(128, 8, "sigmoid", has_correction_bias=True)


@pytest.mark.parametrize(
    ("name", "moe", "mixtures", "kv_bytes_a_token"),
    [
        ("qwen3-30b-a3b", MoeSpec(RouterSpec(128, 8), 768), 48, 98_304),
        ("mixtral-8x7b", MoeSpec(RouterSpec(8, 2), 14336), 32, 131_072),
        ("glm-4.5-air", MoeSpec(GLM, 1408, shared=DenseSpec(1408)), 45, 188_416),
    ],
)
def test_a_published_model_has_its_experts(name, moe, mixtures, kv_bytes_a_token):
    spec = shape_spec(name)
    assert [layer.ffn for layer in spec.layers].count(moe) == mixtures
    assert {layer.ffn for layer in spec.layers} - {moe} <= {DenseSpec(10944)}
    assert kv_bytes_per_token(spec, "bf16") == kv_bytes_a_token


@pytest.mark.parametrize(
    ("name", "active"),
    # Qwen3-30B-A3B's card counts 3.3 billion; Mixtral's 12.9.
    [("qwen3-30b-a3b", 3_353_032_704), ("mixtral-8x7b", 12_879_925_248), ("qwen3-8b", 8_190_735_360)],
)
def test_a_token_is_computed_with_the_experts_that_it_chooses(name, active):
    assert active_parameters(shape_spec(name)) == active


def spec_of(name, **changes):
    config = {key: value for key, value in (shape_config(name) | changes).items() if value is not ...}
    return parse_config(config)


def ffns(name, **changes):
    return [layer.ffn for layer in spec_of(name, **changes).layers]


@pytest.mark.parametrize(
    ("name", "changes", "dense"),
    [
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2}, set(range(0, 48, 2))),
        ("qwen3-30b-a3b", {"mlp_only_layers": [0, 47]}, {0, 47}),
        (
            "qwen3-30b-a3b",
            {"mlp_only_layers": [1], "decoder_sparse_step": 3},
            {*range(48)} - {*range(2, 48, 3)},
        ),
        ("qwen3-30b-a3b", {"mlp_only_layers": None}, set()),
        ("glm-4.5-air", {"first_k_dense_replace": 3}, {0, 1, 2}),
        ("glm-4.5-air", {"first_k_dense_replace": 0}, set()),
        ("glm-4.5-air", {"first_k_dense_replace": ...}, {0}),
    ],
)
def test_some_layers_may_be_dense(name, changes, dense):
    found = ffns(name, **changes)
    assert {index for index, ffn in enumerate(found) if isinstance(ffn, DenseSpec)} == dense


@pytest.mark.parametrize(
    ("name", "changes", "router"),
    [
        ("qwen3-30b-a3b", {"norm_topk_prob": ...}, RouterSpec(128, 8, normalizes=False)),
        ("qwen3-30b-a3b", {"num_experts": ..., "num_local_experts": 64}, RouterSpec(64, 8)),
        ("mixtral-8x7b", {"num_experts_per_tok": ...}, RouterSpec(8, 2)),
        (
            "glm-4.5-air",
            {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": False},
            RouterSpec(128, 8, "sigmoid", False, False, True, 8, 4, 2.5),
        ),
    ],
)
def test_a_router_follows_its_config(name, changes, router):
    assert ffns(name, **changes)[-1].router == router


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        (
            "qwen3-30b-a3b",
            {"num_experts_per_tok": 129},
            "num_experts_per_tok is 129; expected at most",
        ),
        ("qwen3-30b-a3b", {"num_experts": 1 << 20}, "num_experts is 1048576; expected at most 2730 experts"),
        ("qwen3-30b-a3b", {"mlp_only_layers": ["first"]}, "mlp_only_layers"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [48]}, r"mlp_only_layers is \[48\]; expected .* from 0 to 47"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [-1]}, "mlp_only_layers"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [True]}, "mlp_only_layers"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [*range(48)]}, "mlp_only_layers .* a layer with experts"),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 49}, "decoder_sparse_step is 49; expected at most 48"),
        ("glm-4.5-air", {"first_k_dense_replace": 99}, "first_k_dense_replace is 99; expected fewer .* 46"),
        ("glm-4.5-air", {"first_k_dense_replace": 46}, "first_k_dense_replace"),
        ("glm-4.5-air", {"n_shared_experts": 65}, "n_shared_experts is 65; .* at most 64"),
        ("mixtral-8x7b", {"num_local_experts": 0}, "num_local_experts"),
        ("glm-4.5-air", {"n_group": 3}, "n_group is 3; expected a number of groups that"),
        ("glm-4.5-air", {"n_group": 128}, "n_group"),
        ("glm-4.5-air", {"topk_group": 2}, "topk_group is 2; expected groups of the 1"),
        ("glm-4.5-air", {"n_group": 64, "topk_group": 3}, "topk_group is 3"),
        ("glm-4.5-air", {"moe_intermediate_size": 1 << 21}, "moe_intermediate_size"),
        ("glm-4.5-air", {"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_impossible_experts_are_refused(name, changes, says):
    with pytest.raises(ConfigInvalid, match=says):
        ffns(name, **changes)


@pytest.mark.parametrize(
    ("changes", "rotary_size"),
    [({}, 64), ({"partial_rotary_factor": ...}, 64), ({"partial_rotary_factor": 1}, 128)],
)
def test_glm_rotates_half_of_a_head_unless_said_otherwise(changes, rotary_size):
    (attention,) = spec_of("glm-4.5-air", **changes).mixers(AttentionSpec)
    assert attention.rotary_size == rotary_size
    assert (attention.has_qkv_bias, attention.has_output_bias) == (True, False)


def test_mixtral_names_its_tensors_otherwise():
    experts = next(weight for weight in declare(shape_spec("mixtral-8x7b")) if "gate_up" in weight.name)
    assert [source.tensor for source in experts.sources[:2]] == [
        "model.layers.0.block_sparse_moe.experts.0.w1.weight",
        "model.layers.0.block_sparse_moe.experts.0.w3.weight",
    ]
    (fused, _), _ = experts.alternatives
    assert fused.tensor == "model.layers.0.mlp.experts.gate_up_proj"
