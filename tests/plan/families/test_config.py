"""ModelSpec of a config.json, for real models and every spelling."""

from __future__ import annotations

import json

import pytest
from spec_changes import attention_of, field_of

from wisp_plan.errors import ConfigInvalid, UnknownArchitecture
from wisp_plan.families.config import SUPPORTED_ARCHITECTURES, parse_config
from wisp_plan.memory.cache import kv_bytes_per_token
from wisp_plan.spec.rope import RopeSpec
from wisp_plan.weights.sizes import parameters


@pytest.mark.parametrize(
    ("model", "published_parameters", "kv_bytes_a_token"),
    [
        ("llama-3-8b", 8_030_261_248, 131_072),
        ("llama-3.1-8b", 8_030_261_248, 131_072),
        ("llama-3.2-1b", 1_235_814_400, 32_768),
        ("llama-3.2-3b", 3_212_749_824, 114_688),
        ("qwen2.5-7b", 7_615_616_512, 57_344),
        ("qwen2.5-0.5b", 494_032_768, 12_288),
        ("qwen3-8b", 8_190_735_360, 147_456),
        ("qwen3-0.6b", 596_049_920, 114_688),
        ("mistral-7b-v0.1", 7_241_732_096, 131_072),
        ("mistral-7b-v0.3", 7_248_023_552, 131_072),
        ("smollm2-135m", 134_515_008, 23_040),
    ],
)
def test_a_real_model_has_its_published_number_of_parameters(
    spec_of, model, published_parameters, kv_bytes_a_token
):
    spec = spec_of(model)
    assert parameters(spec) == published_parameters
    assert kv_bytes_per_token(spec, "bf16") == kv_bytes_a_token


@pytest.mark.parametrize(
    ("model", "family", "head_size", "traits"),
    [
        ("llama-3-8b", "llama", 128, set()),
        ("llama-3.2-1b", "llama", 64, {"ties_embeddings"}),
        ("qwen2.5-7b", "qwen2", 128, {"has_qkv_bias"}),
        ("qwen3-0.6b", "qwen3", 128, {"ties_embeddings", "has_qk_norm"}),  # 16 heads of 128 > hidden 1024
        ("mistral-7b-v0.1", "mistral", 128, set()),
        ("smollm2-135m", "llama", 64, {"ties_embeddings"}),
    ],
)
def test_a_family_has_its_own_traits(spec_of, model, family, head_size, traits):
    spec = spec_of(model)
    attention, claims = attention_of(spec), ["has_qkv_bias", "has_output_bias", "has_qk_norm"]
    assert (spec.family, attention.head_size) == (family, head_size)
    shown = {claim for claim in claims if getattr(attention, claim)}
    assert shown | ({"ties_embeddings"} if spec.ties_embeddings else set()) == traits
    assert not spec.layers[0].ffn.has_bias


@pytest.mark.parametrize(
    ("model", "changes", "expect"),
    [
        ("llama-3-8b", {"attention_bias": True}, (True, True, False)),
        ("llama-3-8b", {"mlp_bias": True}, (False, False, True)),
        ("qwen3-8b", {"attention_bias": True}, (True, True, False)),
        ("qwen2.5-7b", {"attention_bias": False}, (True, False, False)),  # Qwen2 has no such switch
        ("mistral-7b-v0.1", {"attention_bias": True}, (False, False, False)),  # nor has Mistral
    ],
)
def test_biases_follow_the_family(spec_of, model, changes, expect):
    spec = spec_of(model, **changes)
    attention = attention_of(spec)
    assert (attention.has_qkv_bias, attention.has_output_bias, spec.layers[0].ffn.has_bias) == expect


@pytest.mark.parametrize(
    ("model", "changes", "expect"),
    [
        ("mistral-7b-v0.1", {}, 4096),
        ("mistral-7b-v0.1", {"sliding_window": ...}, 4096),  # Mistral's default
        ("mistral-7b-v0.1", {"sliding_window": None}, None),
        ("mistral-7b-v0.1", {"sliding_window": 32768}, None),  # as long as the context: never closes
        ("llama-3-8b", {"sliding_window": 1024}, None),  # Llama ignores the key
        ("qwen2.5-7b", {"sliding_window": 4096}, None),  # not without use_sliding_window
        ("qwen2.5-7b", {"sliding_window": 4096, "use_sliding_window": True}, None),  # from layer 28 of 28 on
        ("qwen2.5-7b", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 0}, 4096),
        ("qwen2.5-7b", {"sliding_window": 131072, "use_sliding_window": True, "max_window_layers": 9}, None),
        (
            "qwen3-8b",
            {"use_sliding_window": True, "sliding_window": 512, "layer_types": ["sliding_attention"] * 36},
            512,
        ),
        (
            "qwen3-8b",
            {"use_sliding_window": True, "sliding_window": 512, "layer_types": ["full_attention"] * 36},
            None,
        ),
    ],
)
def test_the_sliding_window_follows_the_family(spec_of, model, changes, expect):
    assert attention_of(spec_of(model, **changes)).window == expect


@pytest.mark.parametrize(
    ("changes", "expect"),
    [
        ({"max_window_layers": 20}, (None,) * 20 + (512,) * 16),
        ({"layer_types": ["sliding_attention", "full_attention"] * 18}, (512, None) * 18),
        ({"max_window_layers": 20, "layer_types": ["full_attention"] * 36}, (None,) * 36),  # the list wins
        ({"max_window_layers": 20, "sliding_window": 40960}, (None,) * 36),  # as long as the context
        ({"max_window_layers": 20, "sliding_window": None}, (None,) * 36),
    ],
)
def test_windows_may_differ_by_layer(spec_of, changes, expect):
    spec = spec_of("qwen3-8b", **{"use_sliding_window": True, "sliding_window": 512} | changes)
    assert tuple(layer.mixer.window for layer in spec.layers) == expect
    assert len(spec.groups()) == len(set(expect))


LLAMA3 = RopeSpec(500000.0, "llama3", 8.0, 1.0, 4.0, 8192, rotary_size=128)
LLAMA3_OLD = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


@pytest.mark.parametrize(
    ("changes", "expect"),
    [
        ({"rope_theta": ..., "rope_scaling": ...}, RopeSpec(10000.0, rotary_size=128)),
        ({"rope_scaling": None}, RopeSpec(500000.0, rotary_size=128)),
        ({"rope_scaling": {}}, RopeSpec(500000.0, rotary_size=128)),
        ({"rope_scaling": {"rope_type": "default"}}, RopeSpec(500000.0, rotary_size=128)),
        (
            {"rope_scaling": {"type": "linear", "factor": 4}},
            RopeSpec(500000.0, "linear", 4.0, rotary_size=128),
        ),
        ({"rope_scaling": LLAMA3_OLD}, LLAMA3),
        ({"rope_scaling": {**LLAMA3_OLD, "type": "llama3"}}, LLAMA3),  # both spellings of the kind at once
        # transformers 5 puts everything into rope_parameters
        ({"rope_theta": ..., "rope_parameters": {**LLAMA3_OLD, "rope_theta": 500000.0}}, LLAMA3),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, RopeSpec(1e6, rotary_size=128)),
        ({"rope_parameters": {"rope_theta": 1e6}}, RopeSpec(1e6, rotary_size=128)),
        ({"rope_parameters": {"rope_type": "default"}}, RopeSpec(500000.0, rotary_size=128)),
        ({"rope_parameters": None, "rope_scaling": LLAMA3_OLD}, LLAMA3),
        ({"partial_rotary_factor": 0.5}, RopeSpec(500000.0, rotary_size=64)),
        (
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.25}},
            RopeSpec(1e4, rotary_size=32),
        ),
    ],
)
def test_rotary_positions_are_read_in_both_spellings(spec_of, changes, expect):
    assert attention_of(spec_of("llama-3-8b", **changes)).rope == expect


@pytest.mark.parametrize(
    ("model", "changes", "bos", "eos"),
    [
        ("llama-3-8b", {}, 128000, (128001,)),
        ("llama-3-8b", {"eos_token_id": [7, 8, 7]}, 128000, (7, 8)),
        ("llama-3-8b", {"eos_token_id": None, "bos_token_id": None}, None, ()),
        ("llama-3-8b", {"eos_token_id": ..., "bos_token_id": ...}, 1, (2,)),  # Llama's defaults
        ("qwen3-8b", {"eos_token_id": ..., "bos_token_id": ...}, None, ()),
    ],
)
def test_tokens_that_begin_and_end_a_text_are_read(spec_of, model, changes, bos, eos):
    spec = spec_of(model, **changes)
    assert (spec.bos_token_id, spec.eos_token_ids) == (bos, eos)


@pytest.mark.parametrize(
    ("model", "changes", "field", "expect"),
    [
        ("llama-3-8b", {"num_key_value_heads": ...}, "kv_heads", 32),
        ("mistral-7b-v0.1", {"num_key_value_heads": ...}, "kv_heads", 8),
        ("mistral-7b-v0.1", {"num_key_value_heads": None}, "kv_heads", 32),
        ("qwen3-0.6b", {"head_dim": ...}, "head_size", 128),  # not 1024 / 16
        ("qwen2.5-7b", {"head_dim": 64}, "head_size", 64),
        ("llama-3-8b", {"head_dim": None}, "head_size", 128),
        ("llama-3-8b", {"tie_word_embeddings": ...}, "ties_embeddings", False),
        ("llama-3-8b", {"rms_norm_eps": ...}, "eps", 1e-6),
        ("llama-3-8b", {"hidden_act": ...}, "layers", 32),
        ("llama-3-8b", {"torch_dtype": ...}, "dtype", "BF16"),
        ("llama-3-8b", {"torch_dtype": "float16"}, "dtype", "F16"),
        ("llama-3-8b", {"torch_dtype": ..., "dtype": "float32"}, "dtype", "F32"),  # transformers 5
        ("llama-3-8b", {"hidden_size": 4096.0}, "hidden", 4096),
        ("llama-3-8b", {"unknown_key": {"a": 1}}, "hidden", 4096),
    ],
)
def test_absent_keys_take_the_defaults_of_transformers(spec_of, model, changes, field, expect):
    assert field_of(spec_of(model, **changes), field) == expect


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"hidden_size": ...}, "hidden_size", "is missing; expected a whole number of at least 1"),
        ({"hidden_size": None}, "hidden_size", "None"),
        ({"hidden_size": "4096"}, "hidden_size", "'4096'"),
        ({"hidden_size": True}, "hidden_size", "True"),
        ({"hidden_size": 0}, "hidden_size", "0"),
        ({"hidden_size": -4096}, "hidden_size", "-4096"),
        ({"hidden_size": 4096.5}, "hidden_size", "4096.5"),
        ({"hidden_size": 1 << 50}, "hidden_size", str(1 << 50)),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "0"),
        ({"vocab_size": []}, "vocab_size", "[]"),
        ({"intermediate_size": ...}, "intermediate_size", "is missing"),
        ({"max_position_embeddings": ...}, "max_position_embeddings", "is missing"),
        ({"num_key_value_heads": 5}, "num_key_value_heads", "5 does not divide it"),
        ({"num_key_value_heads": 64}, "num_key_value_heads", "64 does not divide it"),
        ({"num_attention_heads": 30, "num_key_value_heads": 6}, "head_dim", "no multiple of 30"),
        ({"rms_norm_eps": 0}, "rms_norm_eps", "a number above zero"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps", "nan"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps", "a number above zero"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps", "'1e-5'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "true or false"),
        ({"eos_token_id": "2"}, "eos_token_id", "a token id or a list of token ids"),
        ({"eos_token_id": [1, None]}, "eos_token_id", "[1, None]"),
        ({"eos_token_id": -1}, "eos_token_id", "-1"),
        ({"torch_dtype": "int8"}, "torch_dtype", "bfloat16, float16, float32"),
        ({"hidden_act": "gelu"}, "hidden_act", "'gelu'; only 'silu' is supported"),
        ({"quantization_config": {"quant_method": "bnb"}}, "quantization_config.quant_method", "bnb"),
        ({"architectures": ...}, "architectures", "is missing"),
        ({"architectures": []}, "architectures", "['LlamaForCausalLM']"),
        ({"architectures": "LlamaForCausalLM"}, "architectures", "a list"),
        ({"rope_theta": -1.0}, "rope_theta", "a number above zero"),
        ({"rope_scaling": "linear"}, "rope_scaling", "an object"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling.rope_type", "is missing"),
        (
            {"rope_scaling": {"type": "ntk", "factor": 4.0}},
            "rope_scaling.type",
            "'ntk'; supported: default",
        ),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "rope_scaling.rope_type", "'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type", "'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor", "is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "rope_scaling.factor", "at least 1"),
        (
            {"rope_scaling": {**LLAMA3_OLD, "low_freq_factor": 4.0}},
            "rope_scaling.low_freq_factor",
            "below high_freq_factor (4)",
        ),
        (
            {"rope_scaling": {**LLAMA3_OLD, "original_max_position_embeddings": None}},
            "rope_scaling.original_max_position_embeddings",
            "None",
        ),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor", "at most 1"),
        ({"partial_rotary_factor": 0.01}, "partial_rotary_factor", "even"),
        ({"head_dim": 65}, "head_dim", "even"),
    ],
)
def test_a_wrong_key_is_named_with_its_value_and_the_expected_one(config_of, changes, key, said):
    with pytest.raises(ConfigInvalid) as caught:
        parse_config(config_of("llama-3-8b", **changes))
    assert caught.value.key == key
    assert key in caught.value.message
    assert said in caught.value.message
    assert caught.value.message.endswith(".")


@pytest.mark.parametrize(
    ("model", "changes", "key"),
    [
        ("mistral-7b-v0.1", {"sliding_window": 0}, "sliding_window"),
        ("mistral-7b-v0.1", {"sliding_window": "4096"}, "sliding_window"),
        ("mistral-7b-v0.1", {"layer_types": ["full_attention", "sliding_attention"] * 16}, "layer_types"),
        ("qwen3-8b", {"use_sliding_window": True, "layer_types": ["full_attention"] * 35}, "layer_types"),
        ("qwen3-8b", {"use_sliding_window": True, "layer_types": "full_attention"}, "layer_types"),
        ("qwen3-8b", {"use_sliding_window": True, "layer_types": ["linear_attention"]}, "layer_types"),
        ("qwen3-8b", {"use_sliding_window": "yes"}, "use_sliding_window"),
    ],
)
def test_a_window_that_cannot_run_is_refused(config_of, model, changes, key):
    with pytest.raises(ConfigInvalid) as caught:
        parse_config(config_of(model, **changes))
    assert caught.value.key == key


def test_an_unknown_architecture_is_refused_with_those_that_are_known(config_of):
    with pytest.raises(UnknownArchitecture) as caught:
        parse_config(config_of("llama-3-8b", architectures=["GPT2LMHeadModel"]))
    assert "GPT2LMHeadModel" in caught.value.message
    assert all(name.partition("For")[0] in caught.value.message for name in SUPPORTED_ARCHITECTURES)


def test_the_first_architecture_that_is_known_counts(spec_of):
    spec = spec_of("llama-3-8b", architectures=["MyLlama", "LlamaForCausalLM"])
    assert spec.architecture == "LlamaForCausalLM"


@pytest.mark.parametrize("config", [None, [], "LlamaForCausalLM", 3])
def test_a_config_that_is_no_object_is_refused(config):
    with pytest.raises(ConfigInvalid, match="expected an object"):
        parse_config(config)


def test_a_config_survives_json(config_of, spec_of):
    text = json.dumps(config_of("llama-3.1-8b"))
    assert parse_config(json.loads(text)) == spec_of("llama-3.1-8b")


@pytest.mark.parametrize(
    ("model", "named"), [("qwen3-8b", "Qwen3Model"), ("mistral-7b-v0.1", "MistralModel")]
)
def test_an_architecture_without_its_head_is_the_same_with_it(spec_of, model, named):
    assert spec_of(model, architectures=[named]) == spec_of(model)


@pytest.mark.parametrize("changes", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_attention_to_later_tokens_is_refused_and_never_computed_as_causal(config_of, changes):
    with pytest.raises(ConfigInvalid, match="only causal attention"):
        parse_config(config_of("qwen2.5-0.5b") | changes)
