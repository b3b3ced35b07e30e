"""Named shapes: each is the model its name says, to the parameter."""

import pytest
from spec_changes import attention_of, field_of

from wisp_plan.errors import UnknownShape
from wisp_plan.presets import SHAPES, shape_config, shape_spec
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_plan.stored_presets import STORED_SCHEMES, stored_as
from wisp_plan.weights.held import ROUNDED
from wisp_plan.weights.sizes import parameters, weight_bytes

# What the model's page on the Hugging Face Hub counts in its safetensors files; tied embeddings once.
PARAMETERS = {
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "mistral-7b": 7_241_732_096,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "glm-4.5-air": 110_468_824_832,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "nemotron-3-nano-30b-a3b": 31_577_940_288,
    "granite-4.0-h-350m": 340_332_224,
    "granite-4.0-h-tiny": 6_939_037_248,
    "granite-4.0-h-small": 32_207_337_984,
    "falcon-h1-0.5b": 521_411_104,
    # What transformers 5.24 counts: the Hub's numbers include encoders of images and drafting heads.
    "qwen3.8-27b": 26_895_998_464,
    "qwen3.5-9b": 8_953_803_264,
    "qwen3.6-35b-a3b": 34_660_610_688,
    "qwen3-next-80b-a3b": 79_674_391_296,
}


UNUSED = {
    # The layer behind the last: attention, experts, and embeddings and a head of its own.
    "glm-4.5-air": 3_616_573_568,
}
"""Parameters of those that the text model does not use."""


def test_every_published_shape_is_counted():
    assert set(SHAPES) - {"toy"} == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_shape_has_the_parameters_of_the_model_it_is_named_after(name):
    assert parameters(shape_spec(name)) == PARAMETERS[name] - UNUSED.get(name, 0)


@pytest.mark.parametrize(
    ("name", "expect"),
    [
        ("llama-3.2-1b", {"ties_embeddings": True, "head_size": 64, "max_context": 131072}),
        ("qwen3-0.6b", {"has_qk_norm": True, "has_qkv_bias": False, "head_size": 128, "hidden": 1024}),
        ("qwen2.5-0.5b", {"has_qkv_bias": True, "has_output_bias": False, "window": None}),
        ("mistral-7b", {"window": 4096, "family": "mistral", "eps": 1e-5}),
        ("smollm2-135m", {"heads": 9, "kv_heads": 3, "hidden": 576}),
    ],
)
def test_a_shape_has_the_switches_of_its_family(name, expect):
    spec = shape_spec(name)
    assert {key: field_of(spec, key) for key in expect} == expect


def test_llama_3_2_scales_its_positions_and_llama_3_does_not():
    assert attention_of(shape_spec("llama-3-8b")).rope.kind == "none"
    rope = attention_of(shape_spec("llama-3.2-3b")).rope
    assert (rope.kind, rope.factor, rope.original_max_context) == ("llama3", 32.0, 8192)


def test_a_caller_cannot_change_a_shape_for_others():
    shape_config("toy")["hidden_size"] = 1
    assert shape_config("toy")["hidden_size"] == 64


def test_the_error_of_an_unknown_name_has_the_nearest():
    with pytest.raises(UnknownShape, match="did you mean 'llama-3-8b'"):
        shape_spec("lama-3-8b")


@pytest.mark.parametrize("name", STORED_SCHEMES)
def test_a_shape_may_be_stored_in_every_packed_format_that_nothing_is_rounded_to(name):
    spec = stored_as(shape_spec("qwen3-8b"), name)
    assert weight_bytes(spec, "auto", "cuda", tuple(PACKED_FORMATS)).format == name


def test_every_packed_format_is_rounded_to_or_stored():
    assert set(PACKED_FORMATS) == {*STORED_SCHEMES, *ROUNDED}


def test_a_model_that_is_published_in_a_format_stays_as_it_is_published():
    published = shape_spec("gpt-oss-20b")
    assert stored_as(published, "mxfp4") is published
    assert stored_as(published, "fp8_block") != published
