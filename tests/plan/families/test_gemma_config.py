"""Gemma 3's ``config.json``: kinds of layers, two RoPEs in both spellings, norms around each block."""

import pytest

from wisp_plan.errors import ConfigInvalid
from wisp_plan.families.config import parse_config

TINY = {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "query_pre_attn_scalar": 168,
    "sliding_window": 512,
    "max_position_embeddings": 32768,
    "vocab_size": 262144,
    "dtype": "bfloat16",
}
SCALED = {"rope_type": "linear", "factor": 8.0}
OLD = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": SCALED}
NEW = {
    "rope_parameters": {
        "full_attention": {"rope_theta": 1e6, **SCALED},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    }
}


@pytest.mark.parametrize("rope", [OLD, NEW], ids=["transformers 4", "transformers 5"])
def test_five_layers_have_a_window_and_a_rope_of_their_own(rope):
    spec = parse_config(TINY | rope)
    assert [layer.mixer.window for layer in spec.layers] == [512] * 5 + [None, 512]
    assert [layer.mixer.rope.theta for layer in spec.layers] == [1e4] * 5 + [1e6, 1e4]
    assert [layer.mixer.rope.factor for layer in spec.layers] == [1] * 5 + [8, 1]


def test_norms_scales_and_ends_are_gemmas():
    spec = parse_config(TINY)
    (norms,) = {layer.norms for layer in spec.layers}
    assert (norms.is_zero_centred, norms.follow, spec.final_norm.is_zero_centred) == (True, True, True)
    assert spec.layers[0].mixer.score_scale == 168**-0.5
    assert spec.embedding_scale == 25.25  # 25.298 in bf16
    assert (spec.ties_embeddings, spec.bos_token_id, spec.eos_token_ids) == (True, 2, (1,))
    assert parse_config(TINY | {"dtype": "float32"}).embedding_scale == 640**0.5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0; expected null"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0; expected null"),
        ({"hidden_activation": "gelu"}, "hidden_activation is 'gelu'; expected 'gelu_pytorch_tanh'"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
            "rope_parameters.sliding_attention is missing",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_its_key(change, says):
    with pytest.raises(ConfigInvalid, match=says):
        parse_config(TINY | change)
