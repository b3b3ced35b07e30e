"""A gpt-oss's config.json: published sizes, transformers' defaults, spellings, and what is refused."""

from __future__ import annotations

import math

import pytest

from wisp_plan.errors import ConfigInvalid
from wisp_plan.families.config import parse_config
from wisp_plan.fit.verdict import FitRequest, check
from wisp_plan.hardware.gpus import find_card, usable_bytes
from wisp_plan.hardware.kernel_formats import kernel_formats
from wisp_plan.memory.cache import kv_bytes_per_token, model_groups
from wisp_plan.memory.ledger import LedgerOptions, compute_ledger
from wisp_plan.presets import shape_config, shape_spec
from wisp_plan.spec.moe import MoeSpec, RouterSpec
from wisp_plan.spec.rope import RopeSpec
from wisp_plan.weights.declaration import declare, shard
from wisp_plan.weights.sizes import weight_bytes
from wisp_plan.weights.stored import as_stored
from wisp_plan.weights.tensors import tensors_of

ROPE = RopeSpec(
    150000.0,
    "yarn",
    32.0,
    original_max_context=4096,
    is_truncated=False,
    amplitude=0.1 * math.log(32) + 1,
    rotary_size=64,
)
EXPERTS = "model.layers.3.mlp.experts."


def spec_of(**changes):
    config = shape_config("gpt-oss-20b") | changes
    return parse_config({key: value for key, value in config.items() if value is not ...})


@pytest.mark.parametrize(("name", "layers", "experts"), [("gpt-oss-20b", 24, 32), ("gpt-oss-120b", 36, 128)])
def test_a_published_model_has_its_layers(name, layers, experts):
    spec = shape_spec(name)
    moe = MoeSpec(RouterSpec(experts, 4, has_bias=True), 2880, "clamped_swiglu", has_bias=True)
    assert {layer.ffn for layer in spec.layers} == {moe}
    assert [layer.mixer.window for layer in spec.layers] == [128, None] * (layers // 2)
    (attention,) = {(m.heads, m.kv_heads, m.head_size, m.rope, m.has_sinks) for m in spec.mixers(object)}
    assert attention == (64, 8, 64, ROPE, True)
    assert all(m.has_qkv_bias and m.has_output_bias and not m.has_qk_norm for m in spec.mixers(object))
    assert [group.layers[:2] for group in model_groups(spec, "bf16")] == [(0, 2), (1, 3)]
    assert kv_bytes_per_token(spec, "bf16") == layers * 2 * 8 * 64 * 2


@pytest.mark.parametrize(
    ("max_context", "token", "windows"),
    [
        (131_072, 12 * 2048, 9 * 16 * 12 * 2048),  # a window of 128 lies in up to 9 blocks of 16
        (128, 24 * 2048, 0),  # no window ends within the context
    ],
)
def test_a_token_of_context_costs_the_layers_without_a_window(max_context, token, windows):
    options = LedgerOptions("cuda", "auto", "bf16", 8192, 16, max_context, 1, 2048)
    ledger = compute_ledger(shape_spec("gpt-oss-20b"), options)
    assert (ledger.kv_bytes_per_context_token, ledger.kv_window_bytes) == (token, windows)
    assert ledger.kv_bytes_per_token == 24 * 2048


@pytest.mark.parametrize(("name", "gigabytes"), [("gpt-oss-20b", 13.76), ("gpt-oss-120b", 65.25)])
def test_mxfp4_is_held_as_it_is_stored(name, gigabytes):
    sizes = weight_bytes(shape_spec(name), "auto", "cuda")
    assert sizes.format == "mxfp4, bf16"
    # the published files, and padding: 2,880 columns lie in tiles of 256
    assert 1 < (sizes.weights + sizes.scales) / 1e9 / gigabytes < 3072 / 2880


@pytest.mark.parametrize(
    ("name", "card", "max_context"),
    [
        ("gpt-oss-20b", "l4", 131072),
        ("gpt-oss-120b", "a100-40gb", None),
        ("gpt-oss-120b", "h100", 131072),  # 65.6 GiB of weights leave so much in narrower steps
        ("gpt-oss-120b", "h200", 131072),
    ],
)
def test_it_fits_the_cards_that_it_was_made_for(name, card, max_context):
    gpu = find_card(card)
    request = FitRequest(max_concurrent=32, formats_available=kernel_formats(None))
    fit = check(shape_spec(name), request, available_bytes=usable_bytes(gpu), device_name=gpu.name)
    assert (fit.max_context if fit.fits else None) == max_context


def test_absent_keys_have_transformers_defaults():
    kept = ("architectures", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    config = {key: shape_config("gpt-oss-120b")[key] for key in (*kept, "vocab_size")}
    published = shape_spec("gpt-oss-120b")
    assert parse_config(config).layers == published.layers
    assert parse_config(config).final_norm == published.final_norm


@pytest.mark.parametrize(
    "changes",
    [
        # transformers 5 writes one section
        {
            "rope_theta": ...,
            "rope_scaling": ...,
            "rope_parameters": {
                "rope_theta": 150000.0,
                "rope_type": "yarn",
                "factor": 32.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        {"rope_scaling": None},  # the class's default
        {"layer_types": None},  # even layers have the window
        {"num_local_experts": ..., "num_experts": 32},
        {"swiglu_alpha": 1.702, "swiglu_limit": 7},
        {"experts_per_token": 4, "initial_context_length": 4096},
    ],
)
def test_other_spellings_are_the_same_model(changes):
    assert spec_of(**changes) == shape_spec("gpt-oss-20b")


@pytest.mark.parametrize(
    ("changes", "expect"),
    [
        ({"layer_types": ["full_attention"] * 24}, {None}),
        ({"layer_types": ["sliding_attention"] * 24}, {128}),
        ({"sliding_window": 64}, {64, None}),
        ({"sliding_window": None}, {None}),
        ({"sliding_window": 131072}, {None}),
    ],
)
def test_windows_follow_the_layer_types(changes, expect):
    assert {layer.mixer.window for layer in spec_of(**changes).layers} == expect


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"swiglu_limit": 8.0}, "swiglu_limit"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha"),
        ({"num_experts_per_tok": 33}, "num_experts_per_tok"),
        ({"layer_types": ["chunked_attention"] * 24}, "layer_types"),
        ({"layer_types": ["full_attention"] * 23}, "layer_types"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_what_cannot_run_is_refused_by_its_key(changes, key):
    with pytest.raises(ConfigInvalid) as caught:
        spec_of(**changes)
    assert caught.value.key == key


def test_a_layer_has_the_tensors_of_the_published_checkpoint():
    spec = spec_of()
    stored = {
        tensor.name: tensor.shape for tensor in tensors_of(as_stored(declare(spec), {}, spec.quantization))
    }
    assert {name.removeprefix(EXPERTS): shape for name, shape in stored.items() if EXPERTS in name} == {
        "gate_up_proj_blocks": (32, 5760, 90, 16),
        "gate_up_proj_scales": (32, 5760, 90),
        "gate_up_proj_bias": (32, 5760),
        "down_proj_blocks": (32, 2880, 90, 16),
        "down_proj_scales": (32, 2880, 90),
        "down_proj_bias": (32, 2880),
    }
    assert stored["model.layers.3.mlp.router.weight"] == (32, 2880)
    assert stored["model.layers.3.mlp.router.bias"] == (32,)
    assert stored["model.layers.3.self_attn.sinks"] == (64,)
    assert stored["model.layers.3.self_attn.o_proj.bias"] == (2880,)
    dequantized = {tensor.name: tensor.shape for tensor in tensors_of(as_stored(declare(spec), {}, None))}
    assert dequantized[f"{EXPERTS}gate_up_proj"] == (32, 2880, 5760)  # transposed, as transformers saves it
    assert dequantized[f"{EXPERTS}down_proj"] == (32, 2880, 2880)


def test_ranks_share_the_experts_inner_channels():
    spec = spec_of()
    halves = [{weight.name: weight for weight in shard(declare(spec), rank, 2)} for rank in range(2)]
    gate_up = [half["layers.0.experts.gate_up.weight"] for half in halves]
    assert [weight.shape for weight in gate_up] == [(32, 2880, 2880)] * 2
    taken = [[source.slices[1] for source in weight.sources] for weight in gate_up]
    assert taken == [
        [range(0, 2880, 2), range(1, 2881, 2)],
        [range(2880, 5760, 2), range(2881, 5761, 2)],
    ]
    biases = [half["layers.0.experts.gate_up.bias"].sources[2:4] for half in halves]
    assert [[source.at for source in pair] for pair in biases] == [[(1, 0), (1, 1440)]] * 2
    assert biases[1][1].slices == (range(5760 + 2881, 2 * 5760 + 1, 2),)
    assert "layers.0.experts.down.bias" not in halves[1]
