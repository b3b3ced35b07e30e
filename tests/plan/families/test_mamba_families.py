"""Hybrids of Mamba-2 in a config.json: kinds of layers, factors, and which variants are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from wisp_plan.errors import ConfigInvalid
from wisp_plan.families.config import parse_config, parse_config_text
from wisp_plan.mamba_presets import MAMBAS
from wisp_plan.memory.cache import kv_bytes_per_token, model_groups
from wisp_plan.presets import shape_config, shape_spec
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.layer import ParallelSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_plan.spec.rope import RopeSpec
from wisp_plan.units import MIB
from wisp_plan.weights.tensors import expected_tensors

NEMOTRON, NEMOTRON_MOE = "nemotron-nano-9b-v2", "nemotron-3-nano-30b-a3b"
TINY, SMALL, SMALLEST, FALCON = (
    "granite-4.0-h-tiny",
    "granite-4.0-h-small",
    "granite-4.0-h-350m",
    "falcon-h1-0.5b",
)


def spec_of(name, **changes):
    config = {key: value for key, value in (shape_config(name) | changes).items() if value is not ...}
    return parse_config(config)


@pytest.mark.parametrize(
    ("name", "kinds", "kv_bytes_a_token", "state_mib"),
    [
        # mixers, and feed-forward blocks: 27 M, 4 *, 25 -
        (NEMOTRON, {MambaSpec: 27, AttentionSpec: 4, DenseSpec: 25}, 16_384, 136.9),
        (NEMOTRON_MOE, {MambaSpec: 23, AttentionSpec: 6, MoeSpec: 23}, 6_144, 46.8),
        (TINY, {MambaSpec: 36, AttentionSpec: 4, MoeSpec: 40}, 8_192, 54.7),
        (SMALL, {MambaSpec: 36, AttentionSpec: 4, MoeSpec: 40}, 16_384, 145.7),
        (SMALLEST, {MambaSpec: 28, AttentionSpec: 4, DenseSpec: 32}, 4_096, 21.3),
        (FALCON, {MambaSpec: 36, AttentionSpec: 36, DenseSpec: 36}, 18_432, 27.4),
    ],
)
def test_a_published_model_has_its_layers_and_caches(name, kinds, kv_bytes_a_token, state_mib):
    spec = shape_spec(name)
    parts = [part for layer in spec.layers for part in (*layer.mixers, layer.ffn) if part is not None]
    assert {kind: sum(isinstance(part, kind) for part in parts) for kind in kinds} == kinds
    assert len(parts) == sum(kinds.values())
    assert kv_bytes_per_token(spec, "bf16") == kv_bytes_a_token
    state = sum(group.slot_bytes for group in model_groups(spec, "bf16"))
    assert state / MIB == pytest.approx(state_mib, abs=0.05)


def test_nemotron_has_no_positions_and_experts_of_squared_relu():
    spec = shape_spec(NEMOTRON_MOE)
    assert spec.mixers(AttentionSpec) == (AttentionSpec(32, 2, 128, rope=None),)
    assert spec.mixers(MambaSpec) == (MambaSpec(64, 64, 128, groups=8),)
    router = RouterSpec(128, 6, "sigmoid", has_correction_bias=True, scale=2.5)
    assert spec.ffns(MoeSpec) == (MoeSpec(router, 1856, "relu2", shared=DenseSpec(3712, "relu2")),)


def test_experts_may_be_in_a_latent_space():
    spec = spec_of(NEMOTRON_MOE, moe_latent_size=1024)
    (mixture,) = spec.ffns(MoeSpec)
    assert mixture.latent == 1024
    shapes = {tensor.name: tensor.shape for tensor in expected_tensors(spec)}
    expected = {
        "fc1_latent_proj.weight": (1024, 2688),
        "fc2_latent_proj.weight": (2688, 1024),
        "experts.5.up_proj.weight": (1856, 1024),
        "experts.5.down_proj.weight": (1024, 1856),
        "gate.weight": (128, 2688),
        "shared_experts.up_proj.weight": (3712, 2688),
    }
    assert {name: shapes[f"backbone.layers.1.mixer.{name}"] for name in expected} == expected


def test_granites_factors_are_in_embeddings_scores_logits_and_eps():
    spec = shape_spec(SMALL)
    assert spec.embedding_scale == pytest.approx(12 / 0.22)
    assert spec.logits_scale == pytest.approx(1 / 16)
    assert spec.final_norm.eps == spec.layers[0].norms.eps == pytest.approx(1e-5 / 0.22**2)
    assert spec.mixers(AttentionSpec) == (AttentionSpec(32, 8, 128, rope=None, scale=1 / 128),)
    assert spec.mixers(MambaSpec) == (MambaSpec(128, 64, 128, norm_eps=1e-5),)  # as published
    moe = MoeSpec(RouterSpec(72, 10), 768, shared=DenseSpec(1536))
    assert spec.ffns(MoeSpec) == (moe,)
    assert shape_spec(SMALLEST).ffns(DenseSpec) == (DenseSpec(2048),)


def test_falcons_factors_are_in_scores_results_and_projections():
    spec = spec_of(FALCON, attention_in_multiplier=1.5)
    (parallel,) = {layer.mixer for layer in spec.layers}
    attention, mamba = parallel.mixers
    assert parallel == ParallelSpec((attention, mamba), (1.5 * 0.9375, 0.23570226039551587))
    assert attention.scale == pytest.approx(64**-0.5 * 0.39062499999999994 * 1.5**2)
    assert attention == AttentionSpec(8, 2, 64, RopeSpec(1e11, rotary_size=64), scale=attention.scale)
    expected = MambaSpec(24, 64, 128, gating="gate", scales=mamba.scales)
    assert mamba == expected
    sizes = [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738]
    assert mamba.scales == pytest.approx([1.25 * size for size in sizes])
    assert (spec.embedding_scale, spec.logits_scale) == (5.656854249492381, 0.0390625)
    assert spec.ffns(DenseSpec) == (DenseSpec(2048, gate_scale=0.8838834764831844, scale=0.5859375),)


@pytest.mark.parametrize(
    ("name", "changes", "trait", "expect"),
    [
        (NEMOTRON, {"use_bias": True}, "has_input_bias", True),
        (NEMOTRON, {"use_bias": True}, "has_output_bias", True),
        (NEMOTRON, {"use_conv_bias": False}, "has_conv_bias", False),
        (NEMOTRON, {"layer_norm_epsilon": 1e-6}, "norm_eps", 1e-6),
        (NEMOTRON, {"rms_norm_eps": 1e-6}, "norm_eps", 1e-5),  # which transformers does not read
        (NEMOTRON, {"conv_kernel": 3}, "kernel", 3),
        (TINY, {"mamba_d_head": "auto"}, "head_size", 64),
        (TINY, {"mamba_d_head": ...}, "head_size", 64),
        (TINY, {"mamba_proj_bias": True}, "has_output_bias", True),
        (FALCON, {"mamba_rms_norm": True}, "gating", "gate_then_norm"),
        (FALCON, {"mamba_rms_norm": True, "mamba_norm_before_gate": True}, "gating", "norm_then_gate"),
        (FALCON, {"mamba_rms_norm": True, "mamba_norm_before_gate": ...}, "gating", "norm_then_gate"),
        (FALCON, {"mamba_d_ssm": None, "mamba_n_heads": 32}, "heads", 32),  # 2 * hidden_size channels
        (FALCON, {"projectors_bias": True}, "has_output_bias", True),
        (FALCON, {"projectors_bias": True}, "has_input_bias", False),
        (FALCON, {"ssm_in_multiplier": ..., "ssm_multipliers": ...}, "scales", (1.0,) * 5),
        (FALCON, {"time_step_limit": None}, "kernel", 4),
    ],
)
def test_keys_of_mamba_are_read(name, changes, trait, expect):
    (mamba,) = spec_of(name, **changes).mixers(MambaSpec)
    assert getattr(mamba, trait) == expect


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        ({}, None),
        ({"position_embedding_type": None}, None),
        ({"position_embedding_type": ...}, None),
        ({"position_embedding_type": "rope"}, RopeSpec(10000.0, rotary_size=128)),
    ],
)
def test_granite_encodes_positions_only_if_it_says_so(changes, rope):
    (attention,) = spec_of(TINY, **changes).mixers(AttentionSpec)
    assert attention.rope == rope


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (NEMOTRON, {"hybrid_override_pattern": ..., "layers_block_type": None}),
        (TINY, {"layer_types": ["linear_attention"] * 40}),
        (TINY, {"layer_types": ...}),
    ],
)
def test_layers_may_be_spelled_otherwise_or_left_out(name, changes):
    letters = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
    if "layers_block_type" in changes:
        pattern = MAMBAS[name]["hybrid_override_pattern"]
        changes |= {"layers_block_type": [letters[letter] for letter in pattern]}
        assert spec_of(name, **changes) == shape_spec(name)
    else:
        assert len(spec_of(name, **changes).mixers(AttentionSpec)) == 0


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            NEMOTRON,
            {"hybrid_override_pattern": "M-X"},
            r"hybrid_override_pattern is 'M-X'; .*M \(mamba\), \*",
        ),
        (NEMOTRON, {"hybrid_override_pattern": ...}, "hybrid_override_pattern is missing"),
        (NEMOTRON, {"num_hidden_layers": 52}, "num_hidden_layers is 52; expected 56, the layers that hybrid"),
        (NEMOTRON, {"layers_block_type": ["mamba", "conv"]}, "layers_block_type .* expected a list of mamba"),
        (NEMOTRON, {"mlp_hidden_act": "silu"}, "mlp_hidden_act is 'silu'; expected relu2"),
        (NEMOTRON, {"mamba_hidden_act": "gelu"}, "mamba_hidden_act is 'gelu'; expected silu"),
        (NEMOTRON, {"attention_bias": True}, "attention_bias is True; expected false"),
        (NEMOTRON, {"sliding_window": 4096}, "sliding_window is 4096; expected null"),
        (NEMOTRON, {"n_groups": 7}, r"n_groups is 7; expected a divisor of mamba_num_heads \(128\)"),
        (NEMOTRON, {"conv_kernel": 1}, "conv_kernel is 1; expected a whole number of at least 2"),
        (
            NEMOTRON_MOE,
            {"moe_latent_size": 1024, "mlp_bias": True},
            "mlp_bias is True; expected false, as moe_",
        ),
        (NEMOTRON_MOE, {"n_shared_experts": 2}, "n_shared_experts is 2; expected 1"),
        (NEMOTRON_MOE, {"n_group": 5}, "n_group is 5"),
        (NEMOTRON_MOE, {"moe_intermediate_size": ...}, "moe_intermediate_size is missing"),
        (
            TINY,
            {"position_embedding_type": "alibi"},
            "position_embedding_type is 'alibi'; expected rope, nope",
        ),
        (TINY, {"normalization_function": "layernorm"}, "normalization_function is 'layernorm'"),
        (TINY, {"layer_types": ["mamba"] * 39}, "num_hidden_layers is 40; expected 39"),
        (
            TINY,
            {"layer_types": ["mamba"] * 39 + ["conv"]},
            "layer_types .* expected a list of mamba, attention",
        ),
        (TINY, {"mamba_d_head": 63}, "mamba_d_head is 63; expected channels that with mamba_n_heads"),
        (TINY, {"num_experts_per_tok": 65}, "num_experts_per_tok is 65"),
        (TINY, {"residual_multiplier": 0}, "residual_multiplier is 0; expected a number above zero"),
        (FALCON, {"mamba_d_ssm": 1537}, "mamba_d_head is 64; .* make mamba_d_ssm"),
        (FALCON, {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers is .*; expected a list of 5 numbers above"),
        (
            FALCON,
            {"mlp_multipliers": [1.0, "x"]},
            "mlp_multipliers is .*; expected a list of 2 numbers above",
        ),
        (FALCON, {"mamba_use_mlp": False}, "mamba_use_mlp is False; expected true"),
        (FALCON, {"attn_layer_indices": [0]}, "attn_layer_indices is .*; expected null"),
        (
            FALCON,
            {"attention_bias": True, "attention_in_multiplier": 1.5},
            "attention_bias is True; expected false, as attention_in_multiplier is not 1",
        ),
        (FALCON, {"mamba_proj_bias": True}, "mamba_proj_bias is True; expected false, as ssm_in_multiplier"),
        *(
            (name, {"time_step_limit": [0.001, 0.1]}, "time_step_limit is")
            for name in (NEMOTRON, TINY, FALCON)
        ),
    ],
)
def test_what_no_code_computes_is_refused_by_name(name, changes, message):
    with pytest.raises(ConfigInvalid, match=message):
        spec_of(name, **changes)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((NEMOTRON, key) for key in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups")),
        (NEMOTRON, "conv_kernel"),
        *((NEMOTRON_MOE, key) for key in ("moe_shared_expert_intermediate_size", "moe_latent_size")),
        *((TINY, key) for key in ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups")),
        *((TINY, key) for key in ("mamba_d_conv", "mamba_expand", "shared_intermediate_size")),
        (FALCON, "mamba_d_ssm"),
    ],
)
def test_sizes_that_no_model_has_are_refused_by_their_key(name, key):
    with pytest.raises(ConfigInvalid, match=f"{key} is 2097152; expected a whole number of at most"):
        spec_of(name, **{key: 1 << 21})


def test_biases_and_factors_that_do_not_meet_are_taken():
    spec = spec_of(FALCON, attention_bias=True, mamba_proj_bias=True, ssm_in_multiplier=1.0, mlp_bias=True)
    (attention,), (mamba,) = spec.mixers(AttentionSpec), spec.mixers(MambaSpec)
    assert attention.has_qkv_bias
    assert attention.has_output_bias
    assert mamba.has_input_bias
    assert spec.layers[0].ffn.has_bias


def test_infinity_is_read_as_python_writes_it():
    text = json.dumps(MAMBAS[NEMOTRON])
    assert "Infinity" in text
    assert parse_config_text(text.encode(), "here") == shape_spec(NEMOTRON)
    assert MAMBAS[NEMOTRON]["time_step_limit"] == [0.0, math.inf]


@pytest.mark.parametrize(
    ("name", "layer", "expect"),
    [
        (NEMOTRON, "backbone.layers.0.", {"norm.weight", "mixer.A_log", "mixer.in_proj.weight"}),
        (NEMOTRON, "backbone.layers.1.", {"norm.weight", "mixer.up_proj.weight", "mixer.down_proj.weight"}),
        (NEMOTRON, "backbone.layers.14.", {"norm.weight", "mixer.q_proj.weight", "mixer.o_proj.weight"}),
        (NEMOTRON, "", {"backbone.embeddings.weight", "backbone.norm_f.weight", "lm_head.weight"}),
        (
            NEMOTRON_MOE,
            "backbone.layers.1.mixer.",
            {
                *("gate.weight", "gate.e_score_correction_bias", "shared_experts.up_proj.weight"),
                *("experts.127.up_proj.weight", "experts.0.down_proj.weight"),
            },
        ),
        (
            TINY,
            "model.layers.0.",
            {"input_layernorm.weight", "mamba.norm.weight", "post_attention_layernorm.weight"},
        ),
        (TINY, "model.layers.5.", {"self_attn.q_proj.weight", "shared_mlp.input_linear.weight"}),
        (
            TINY,
            "model.layers.5.block_sparse_moe.",
            {"input_linear.weight", "output_linear.weight", "router.layer.weight"},
        ),
        (
            FALCON,
            "model.layers.3.",
            {"self_attn.k_proj.weight", "mamba.conv1d.weight", "pre_ff_layernorm.weight"},
        ),
        (FALCON, "model.layers.3.feed_forward.", {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}),
        (FALCON, "model.", {"final_layernorm.weight", "embed_tokens.weight"}),
    ],
)
def test_tensors_have_the_names_of_published_checkpoints(name, layer, expect):
    names = {tensor.name for tensor in expected_tensors(shape_spec(name))}
    assert {layer + part for part in expect} <= names


def test_a_falcon_without_a_norm_reads_none():
    names = {tensor.name for tensor in expected_tensors(shape_spec(FALCON))}
    assert "model.layers.0.mamba.norm.weight" not in names
    normed = expected_tensors(replace(spec_of(FALCON, mamba_rms_norm=True)))
    assert "model.layers.0.mamba.norm.weight" in {tensor.name for tensor in normed}
