"""Qwen3.5 and its like: kinds of layers, gated attention, text models of checkpoints with images."""

from __future__ import annotations

import pytest

from wisp_plan.errors import ConfigInvalid
from wisp_plan.families.config import parse_config
from wisp_plan.memory.cache import kv_bytes_per_token, model_groups
from wisp_plan.presets import shape_config, shape_spec
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.weights.tensors import expected_tensors

CONFIG = shape_config("qwen3.5-9b")


def with_images(**changes):
    text = {
        key: value for key, value in CONFIG.items() if key not in ("architectures", "tie_word_embeddings")
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": {"depth": 27},
        "tie_word_embeddings": False,
    } | changes


@pytest.mark.parametrize(
    ("model", "kv_bytes", "state_mib"),
    [("qwen3.8-27b", 64 << 10, 144), ("qwen3.5-9b", 32 << 10, 48)],  # FAMILIES section 4, bf16 and float32
)
def test_three_layers_of_four_have_a_state_and_the_fourth_keys_and_values(model, kv_bytes, state_mib):
    spec = shape_spec(model)
    kinds = [type(layer.mixer) for layer in spec.layers]
    assert kinds == [DeltaNetSpec, DeltaNetSpec, DeltaNetSpec, AttentionSpec] * (len(kinds) // 4)
    assert kv_bytes_per_token(spec, "bf16") == kv_bytes
    delta_net = spec.mixers(DeltaNetSpec)[0]
    conv_bytes = len(kinds) * 3 // 4 * 3 * delta_net.conv_size * 2
    states = model_groups(spec, "bf16")[-1]
    assert states.slot_bytes == (state_mib << 20) + conv_bytes


def test_attention_has_a_gate_and_norms_and_rotates_a_quarter_of_each_head():
    spec = parse_config(CONFIG)
    (attention,) = spec.mixers(AttentionSpec)
    assert attention.has_output_gate
    assert attention.has_qk_norm
    assert attention.rotary_size == 64
    assert all(layer.norms.is_zero_centred for layer in spec.layers)
    assert spec.final_norm.is_zero_centred
    older = {key: value for key, value in CONFIG.items() if key != "rope_parameters"} | {"rope_theta": 1e7}
    assert parse_config(older) == parse_config(CONFIG | {"mamba_ssm_dtype": "float32"}) == spec


def test_layers_are_listed_or_of_every_interval():
    listed = ["full_attention", "linear_attention"] * 16
    spec = parse_config(CONFIG | {"layer_types": listed})
    assert [isinstance(layer.mixer, AttentionSpec) for layer in spec.layers] == [True, False] * 16
    spec = parse_config(CONFIG | {"full_attention_interval": 8})
    assert [index for index in range(32) if isinstance(spec.layers[index].mixer, AttentionSpec)] == [
        7,
        15,
        23,
        31,
    ]


def test_the_text_model_of_a_checkpoint_with_images_has_tensors_of_its_own_names():
    spec, plain = parse_config(with_images()), parse_config(CONFIG)
    assert spec.layers == plain.layers
    assert spec.architecture == plain.architecture
    names = [tensor.name for tensor in expected_tensors(spec)]
    expected = [
        tensor.name.replace("model.", "model.language_model.", 1) for tensor in expected_tensors(plain)
    ]
    assert names == expected
    assert "model.language_model.layers.0.linear_attn.in_proj_qkv.weight" in names
    assert names[-1] == "lm_head.weight"


def test_keys_beside_the_text_model_count_where_it_has_none():
    changes = {"eos_token_id": [7, 8], "dtype": "float16", "tie_word_embeddings": True}
    del (text := dict(with_images()["text_config"]))["eos_token_id"], text["torch_dtype"]
    spec = parse_config(with_images(**changes, text_config=text))
    assert (spec.eos_token_ids, spec.dtype, spec.ties_embeddings) == ((7, 8), "F16", True)
    assert parse_config(with_images(eos_token_id=7)).eos_token_ids == (248044,)


def test_mrope_of_text_is_plain_rope():
    rope = CONFIG["rope_parameters"] | {"mrope_interleaved": True, "mrope_section": [11, 11, 10]}
    assert parse_config(CONFIG | {"rope_parameters": rope}) == parse_config(CONFIG)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"linear_num_value_heads": 24}, "linear_num_value_heads"),  # of 16 key heads
        ({"linear_num_key_heads": 1 << 13}, "linear_num_key_heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"layer_types": ["linear_attention"] * 31}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 32}, "layer_types"),
        ({"full_attention_interval": 0}, "full_attention_interval"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_impossible_keys_are_refused_by_name(changes, key):
    with pytest.raises(ConfigInvalid) as caught:
        parse_config(CONFIG | changes)
    assert caught.value.key == key
    with pytest.raises(ConfigInvalid, match=f"text_config.{key}|{key}"):
        parse_config(with_images(text_config=with_images()["text_config"] | changes))


MIXTURE = shape_config("qwen3.6-35b-a3b")


def test_mixtures_of_qwen3_5_have_a_gated_shared_expert_and_weights_that_sum_to_one():
    spec = parse_config(MIXTURE | {"norm_topk_prob": False})  # Qwen3.5's transformers ignores it
    (moe,) = {layer.ffn for layer in spec.layers}
    assert (moe.router.experts, moe.router.chosen, moe.inner, moe.shared.inner) == (256, 8, 512, 512)
    assert moe.has_shared_gate
    assert moe.router.normalizes
    assert parse_config(MIXTURE | {"shared_expert_intermediate_size": 640}).layers[0].ffn.shared.inner == 640


def test_qwen3_next_has_grouped_projections_and_dense_layers_where_its_config_says():
    config = shape_config("qwen3-next-80b-a3b") | {"mlp_only_layers": [2], "norm_topk_prob": False}
    spec = parse_config(config)
    assert all(mixer.is_grouped for mixer in spec.mixers(DeltaNetSpec))
    dense = [index for index, layer in enumerate(spec.layers) if isinstance(layer.ffn, DenseSpec)]
    assert (dense, spec.layers[2].ffn.inner) == ([2], 5120)
    assert not spec.layers[0].ffn.router.normalizes
    names = [tensor.name for tensor in expected_tensors(spec) if ".layers.0." in tensor.name]
    assert "model.layers.0.linear_attn.in_proj_qkvz.weight" in names
    assert "model.layers.0.mlp.shared_expert_gate.weight" in names
