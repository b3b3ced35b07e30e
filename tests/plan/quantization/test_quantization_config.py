"""Every method's ``quantization_config``, as published checkpoints have it, read into a scheme a layer."""

import re

import pytest

from wisp_plan.errors import ConfigInvalid
from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.awq import NIBBLE_ROWS
from wisp_plan.quantization.config import METHODS, read_quantization
from wisp_plan.quantization.scheme import Scheme

Q_PROJ, EXPERT, HEAD = "model.layers.3.self_attn.q_proj", "model.layers.3.mlp.experts.7.up_proj", "lm_head"
GATE = "model.layers.3.mlp.gate"
CT = "compressed-tensors"


def weights(bits, strategy, number="int", **more):
    return {"num_bits": bits, "type": number, "strategy": strategy, **more}


def group(form, stored, targets=("Linear",), **more):
    groups = {"group_0": {"targets": list(targets), "weights": stored, "input_activations": None}}
    return {
        "quant_method": CT,
        "format": form,
        "config_groups": groups,
        "ignore": ["lm_head", "re:.*mlp\\.gate$"],
        **more,
    }


def read(section):
    found = read_quantization(ConfigReader({"quantization_config": section}))
    assert found is not None
    return found


def test_a_checkpoint_without_a_section_is_not_quantized():
    assert read_quantization(ConfigReader({})) is None


PACKED = {"is_packed": True}
FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GROUPED = weights(4, "group", group_size=128, symmetric=True)


@pytest.mark.parametrize(
    ("section", "scheme"),
    [
        (FP8_BLOCK, Scheme("fp8", "fp8", 128, 128)),
        (FP8_BLOCK | {"scale_fmt": "ue8m0"}, Scheme("fp8", "fp8", 128, 128)),  # told by the scales' dtype
        ({"quant_method": "fp8", "activation_scheme": "static"}, Scheme("fp8", "fp8", 0, 0)),
        (group("float-quantized", weights(8, "channel", "float")), Scheme(CT, "fp8", 1, 0)),
        (group("float-quantized", weights(8, "tensor", "float")), Scheme(CT, "fp8", 0, 0)),
        (
            group("float-quantized", weights(8, "block", "float", block_structure=[128, 128])),
            Scheme(CT, "fp8", 128, 128),
        ),
        (group("naive-quantized", weights(8, "channel", "float")), Scheme(CT, "fp8", 1, 0)),
        (group("int-quantized", weights(8, "channel")), Scheme(CT, "int8", 1, 0)),
        (group("pack-quantized", GROUPED), Scheme(CT, "int4", 1, 128, **PACKED)),
        (
            group("pack-quantized", GROUPED | {"symmetric": False}),
            Scheme(CT, "int4", 1, 128, has_zero_points=True, **PACKED),
        ),
        (
            group("pack-quantized", GROUPED | {"actorder": "group"}),
            Scheme(CT, "int4", 1, 128, is_act_ordered=True, **PACKED),
        ),
        (
            group("pack-quantized", GROUPED | {"actorder": "dynamic"}),
            Scheme(CT, "int4", 1, 128, is_act_ordered=True, **PACKED),
        ),
        (group("pack-quantized", weights(4, "channel")), Scheme(CT, "int4", 1, 0, **PACKED)),
        (group("pack-quantized", weights(8, "channel")), Scheme(CT, "int8", 1, 0, **PACKED)),
        (
            group("nvfp4-pack-quantized", weights(4, "tensor_group", "float", group_size=16)),
            Scheme(CT, "nvfp4", 1, 16, divides_by_tensor_scale=True, **PACKED),
        ),
        (
            group("mxfp4-pack-quantized", weights(4, "group", "float", group_size=32)),
            Scheme(CT, "mxfp4", 1, 32, **PACKED),
        ),
        (group("mxfp8-quantized", weights(8, "group", "float", group_size=32)), Scheme(CT, "mxfp8", 1, 32)),
        (GPTQ, Scheme("gptq", "int4", 1, 128, **PACKED)),
        (GPTQ | {"bits": 8, "group_size": -1}, Scheme("gptq", "int8", 1, 0, **PACKED)),
        (GPTQ | {"desc_act": True}, Scheme("gptq", "int4", 1, 128, is_act_ordered=True, **PACKED)),
        (
            GPTQ | {"sym": False},
            Scheme("gptq", "int4", 1, 128, has_zero_points=True, stores_zero_minus_one=True, **PACKED),
        ),
        (
            GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
            Scheme("gptq", "int4", 1, 128, has_zero_points=True, **PACKED),
        ),
        (AWQ, Scheme("awq", "int4", 1, 128, has_zero_points=True, nibble_rows=NIBBLE_ROWS, **PACKED)),
        (
            {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": False},
            Scheme("awq", "int4", 1, 64, nibble_rows=NIBBLE_ROWS, **PACKED),
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Scheme("modelopt", "fp8", 0, 0)),
        ({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}, Scheme("modelopt", "fp8", 128, 128)),
        (
            {"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "group_size": 16},
            Scheme("modelopt", "nvfp4", 1, 16, **PACKED),
        ),
        (
            {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}},
            Scheme("modelopt", "fp8", 0, 0),
        ),
    ],
)
def test_a_layer_has_the_scheme_of_its_section(section, scheme):
    assert read(section).scheme_of(Q_PROJ) == scheme


@pytest.mark.parametrize(
    ("section", "left_alone", "quantized"),
    [
        (FP8_BLOCK | {"modules_to_not_convert": [HEAD, GATE]}, [HEAD, GATE], [Q_PROJ, EXPERT]),
        (FP8_BLOCK | {"ignored_layers": ["model.layers.3"]}, [Q_PROJ], ["model.layers.30.self_attn.q_proj"]),
        (group("pack-quantized", GROUPED), [HEAD, GATE], [Q_PROJ, "model.layers.3.mlp.gate_proj"]),
        (group("pack-quantized", GROUPED, ["re:.*up_proj$"]), [Q_PROJ], [EXPERT]),
        (AWQ | {"modules_to_not_convert": ["mlp.gate"]}, [HEAD, GATE], [Q_PROJ]),
        (GPTQ, [HEAD], [Q_PROJ]),
        (GPTQ | {"lm_head": True}, [], [HEAD]),
        (GPTQ | {"dynamic": {"-:.*experts.*": {}}}, [EXPERT], [Q_PROJ]),
        ({"quant_method": "mxfp4", "modules_to_not_convert": [HEAD]}, [Q_PROJ, HEAD], [EXPERT]),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "exclude_modules": ["lm_head", "*.mlp.gate*"],
            },
            [HEAD, GATE],
            [Q_PROJ],
        ),
    ],
)
def test_listed_layers_are_left_alone(section, left_alone, quantized):
    found = read(section)
    assert [layer for layer in left_alone if found.scheme_of(layer) is not None] == []
    assert [layer for layer in quantized if found.scheme_of(layer) is None] == []


def test_groups_of_layers_have_schemes_of_their_own():
    dynamic = GPTQ | {"dynamic": {"+:.*experts.*": {"bits": 8, "group_size": 64}}}
    assert read(dynamic).scheme_of(EXPERT) == Scheme("gptq", "int8", 1, 64, **PACKED)
    assert read(dynamic).scheme_of(Q_PROJ) == Scheme("gptq", "int4", 1, 128, **PACKED)
    mixed = group("mixed-precision", GROUPED, ["re:.*experts.*"])
    mixed["config_groups"]["group_0"]["format"] = "pack-quantized"
    mixed["config_groups"]["group_1"] = {
        "targets": ["Linear"],
        "format": "float-quantized",
        "weights": weights(8, "channel", "float"),
    }
    assert read(mixed).scheme_of(EXPERT) == Scheme(CT, "int4", 1, 128, **PACKED)
    assert read(mixed).scheme_of(Q_PROJ) == Scheme(CT, "fp8", 1, 0)
    layers = {Q_PROJ: {"quant_algo": "FP8"}, EXPERT: {"quant_algo": "NVFP4", "group_size": 16}}
    each = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert read(each).scheme_of(EXPERT) == Scheme("modelopt", "nvfp4", 1, 16, **PACKED)
    assert read(each).scheme_of(Q_PROJ) == Scheme("modelopt", "fp8", 0, 0)
    assert read(each).scheme_of("model.layers.4.self_attn.q_proj") is None


@pytest.mark.parametrize(
    ("section", "kv"),
    [
        (group("pack-quantized", GROUPED), None),
        (group("pack-quantized", GROUPED, kv_cache_scheme=weights(8, "tensor", "float")), "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "FP8",
                "kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": False},
            },
            "fp8",
        ),
    ],
)
def test_the_kv_cache_has_scales_where_the_section_says_so(section, kv):
    assert read(section).kv == kv


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({}, "quant_method is missing"),
        ({"quant_method": "bitsandbytes"}, "quant_method is bitsandbytes, a format that is not read"),
        (FP8_BLOCK | {"expert_dtype": "fp4"}, "expert_dtype is fp4"),
        (FP8_BLOCK | {"weight_block_size": [128]}, "weight_block_size is [128]; expected two whole numbers"),
        (
            FP8_BLOCK | {"modules_to_not_convert": "lm_head"},
            "modules_to_not_convert is 'lm_head'; expected a list",
        ),
        (FP8_BLOCK | {"modules_to_not_convert": [7]}, "modules_to_not_convert has the entry 7"),
        (GPTQ | {"bits": 3}, "bits is 3"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is marlin"),
        (GPTQ | {"group_size": 100}, "group_size is 100; expected a multiple of 16"),
        (
            GPTQ | {"dynamic": {"+:(a+)+": {}}},
            "dynamic has re:(a+)+, a regex with a repeat inside of a repeat",
        ),
        (GPTQ | {"dynamic": {"+:a": 3}}, "dynamic.+:a is 3; expected an object"),
        (AWQ | {"version": "gemv"}, "version is gemv"),
        (AWQ | {"bits": 8}, "bits is 8"),
        (group("marlin-24", GROUPED), "format is marlin-24 with 4 bits of type int"),
        (group("pack-quantized", weights(3, "group", group_size=128)), "pack-quantized with 3 bits"),
        (group("float-quantized", weights(8, "attn_head", "float")), "strategy is attn_head"),
        (group("pack-quantized", GROUPED, ignore=["re:("]), "ignore has re:(, which is no regex"),
        (
            group("pack-quantized", GROUPED, sparsity_config={"format": "sparse-24-bitmask"}),
            "sparsity_config.format is sparse-24-bitmask",
        ),
        (
            group("pack-quantized", GROUPED, kv_cache_scheme=weights(8, "tensor")),
            "kv_cache_scheme is 8 bits of type int",
        ),
        ({"quant_method": CT, "format": "pack-quantized"}, "config_groups is missing"),
        (
            group("int-quantized", weights(8, "channel", symmetric=False)),
            "weights.symmetric is false: zero points of numbers that are not packed, a format",
        ),
        (
            group(
                "pack-quantized", GROUPED, transform_config={"config_groups": {"R4": {"type": "hadamard"}}}
            ),
            "transform_config is rotations of activations, a format that is not read",
        ),
        ({"quant_method": "modelopt", "quant_algo": "INT4_AWQ"}, "quant_algo is INT4_AWQ"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "group_size is 32"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers is missing"),
    ],
)
def test_what_is_not_read_is_refused_with_its_name(section, said):
    with pytest.raises(ConfigInvalid, match=re.escape(said)) as refusal:
        read(section)
    assert str(refusal.value).startswith("config.json: quantization_config.")
    assert re.search(r"(Choose another checkpoint|Take config.json) ", str(refusal.value))


def test_a_regex_of_gptq_may_hold_colons():
    section = GPTQ | {"dynamic": {"-:.*\\.(?:q|k)_proj.*": {}}}
    assert read(section).scheme_of(Q_PROJ) is None
    assert read(section).scheme_of(EXPERT) is not None


def test_every_method_is_there_by_its_name():
    assert set(METHODS) == {"fp8", CT, "gptq", "awq", "mxfp4", "modelopt", "gguf"}
