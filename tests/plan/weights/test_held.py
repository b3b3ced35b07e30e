"""Formats in which a device holds a checkpoint's weights."""

from dataclasses import replace

import pytest

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.errors import RequestInvalid
from wisp_plan.memory.loading import GPU_CHUNK_BYTES
from wisp_plan.quantization.config import stored_format
from wisp_plan.quantization.layer_names import EVERY_LAYER, LayerNames
from wisp_plan.quantization.packed_format import MAX_COLUMNS, PACKED_FORMATS
from wisp_plan.quantization.packed_scheme import packed_scheme
from wisp_plan.quantization.scheme import Quantization, Rule, Scheme
from wisp_plan.spec.weight import WeightSource, WeightSpec, stacked
from wisp_plan.weights.held import check_rounding, describe_held, held_format, held_name, held_weights, hold
from wisp_plan.weights.layout import held_bytes
from wisp_plan.weights.stored import spec_as_stored

ALL = tuple(PACKED_FORMATS)
BLOCK = Scheme("fp8", "fp8", 128, 128)
GPTQ = Scheme("gptq", "int4", 1, 128, is_packed=True)
LAYERS = LayerNames((EVERY_LAYER,))


HELD_AS = [
    (Scheme("fp8", "fp8", 0, 0), "fp8"),  # a scale a tensor becomes one a row
    (Scheme("compressed-tensors", "fp8", 1, 0), "fp8"),
    (BLOCK, "fp8_block"),
    (Scheme("fp8", "fp8", 64, 256), "fp8_block"),
    (Scheme("fp8", "fp8", 32, 32), None),  # a tile of 128 columns has one scale for eight rows
    (Scheme("compressed-tensors", "int8", 1, 0), "int8"),
    (Scheme("gptq", "int8", 1, 128, is_packed=True), None),
    (Scheme("gptq", "int8", 1, 0, is_packed=True, has_zero_points=True), None),
    (GPTQ, "int4"),
    (Scheme("gptq", "int4", 1, 0, is_packed=True), "int4"),  # the whole axis: equal groups
    (Scheme("gptq", "int4", 1, 256, is_packed=True), "int4"),
    (Scheme("awq", "int4", 1, 64, is_packed=True, has_zero_points=True), "int4_g64_zero"),
    (Scheme("awq", "int4", 1, 32, is_packed=True), "int4_g32"),
    (Scheme("awq", "int4", 1, 16, is_packed=True), None),
    (replace(GPTQ, is_act_ordered=True), None),  # its groups lie scattered over the columns
    (Scheme("mxfp4", "mxfp4", 1, 32, is_packed=True), "mxfp4"),
    (Scheme("modelopt", "nvfp4", 1, 16, is_packed=True), "nvfp4"),
    (Scheme("modelopt", "mxfp8", 1, 32), None),
    (Scheme("compressed-tensors", "int4", 1, 64, is_packed=True), "int4_g64"),
    (Scheme("awq", "int4", 1, 128, is_packed=True, has_zero_points=True), "int4_zero"),
    (Scheme("awq", "int4", 1, 32, is_packed=True, has_zero_points=True), "int4_g32_zero"),
]


@pytest.mark.parametrize(("scheme", "packed"), HELD_AS)
def test_a_scheme_has_a_packed_format_where_nothing_is_lost(scheme, packed):
    held = packed_scheme(scheme)
    assert (held.name if held else None) == packed


@pytest.mark.parametrize(
    ("method", "scheme", "names"),
    [("mxfp4", Scheme("mxfp4", "mxfp4", 1, 32, is_packed=True), "mxfp4"), ("gptq", GPTQ, "gptq, int4")],
)
def test_a_refusal_to_round_again_names_method_and_format_once_where_equal(spec_of, method, scheme, names):
    spec = replace(spec_of("llama-3-8b"), quantization=Quantization(method, (Rule(LAYERS, scheme),)))
    with pytest.raises(RequestInvalid, match=rf"is quantized already \({names}\), and would lose more"):
        check_rounding(spec, "fp8")


def projection(rows=256, columns=512, scheme=None, role="projection"):
    sources = stacked(("some.weight", (rows, columns)))
    stored = stored_format(scheme) if scheme else None
    return WeightSpec(
        "some.weight", (rows, columns), tuple(replace(source, stored=stored) for source in sources), role
    )


@pytest.mark.parametrize(
    ("weight", "request_", "formats", "held"),
    [
        (projection(), "auto", ALL, None),
        (projection(), "fp8", ALL, "fp8"),
        (projection(), "fp8", ("int8",), None),  # no kernels
        (projection(), "int4", ALL, "int4"),
        (projection(columns=576), "int4", ALL, "int4_g64"),  # SmolLM2-135M: no multiple of 128
        (projection(columns=72), "fp8", ALL, None),  # no multiple of 16
        (projection(scheme=GPTQ), "auto", ALL, "int4"),
        (projection(scheme=GPTQ), "bf16", ALL, None),
        (projection(columns=320, scheme=GPTQ), "auto", ALL, None),  # a part of a group
        (projection(role="head"), "fp8", ALL, None),
        (projection(role="embedding"), "fp8", ALL, None),
    ],
)
def test_a_weight_is_held_as_stored_rounded_or_in_bf16(weight, request_, formats, held):
    packed = held_format(weight, request_, formats)
    assert (packed.name if packed else None) == held


@pytest.mark.parametrize("packed", PACKED_FORMATS)
@pytest.mark.parametrize(("columns", "is_held"), [(53_248, True), (MAX_COLUMNS, True), (65_536, False)])
def test_the_widest_matrices_are_held_if_a_buffer_takes_their_rows(packed, columns, is_held):
    """53,248 are those of Llama-3.1-405B's down projections."""
    scheme = next(scheme for scheme, name in HELD_AS if name == packed)
    weight = projection(128, columns, scheme)
    held = held_format(weight, "auto", ALL)
    assert (held is not None) == is_held
    if is_held:
        assert sum(held_bytes(replace(weight, held=held))) <= GPU_CHUNK_BYTES


def test_a_block_of_scales_that_begins_inside_eight_rows_is_dequantized():
    weight = projection(rows=260, scheme=BLOCK)
    (source,) = weight.sources
    parts = tuple(replace(source, at=(first, 0)) for first in (0, 132))
    assert held_format(replace(weight, sources=parts), "auto", ALL) is None


def test_parts_in_different_schemes_are_dequantized():
    weight = projection(scheme=GPTQ)
    other = replace(weight.sources[0], stored=None)
    assert isinstance(other, WeightSource)
    mixed = replace(weight, sources=(*weight.sources, other))
    assert held_format(mixed, "auto", ALL) is None
    assert held_format(mixed, "int4", ALL) is None


def test_layers_that_a_quantized_checkpoint_leaves_out_are_not_rounded(spec_of):
    spec = spec_of("llama-3-8b")
    ignored = Rule(LayerNames(("model.layers.0",)), None)
    spec = replace(spec, quantization=Quantization("fp8", (ignored, Rule(LAYERS, BLOCK))))
    weights = held_weights(spec, "fp8", ALL)
    assert held_name(weights) == "fp8_block, bf16"
    assert describe_held(weights) == (
        "fp8 (E4M3, 128 x 128) as stored; some projections, embeddings and head bf16"
    )
    assert {weight.held for weight in weights if weight.name.startswith("layers.0.")} == {None}


def test_the_words_for_weights_name_what_was_done_with_them(spec_of):
    spec = spec_of("llama-3-8b")
    assert describe_held(held_weights(spec, "auto", ALL)) == "bf16"
    assert describe_held(held_weights(spec, "int8", ALL)) == (
        "int8 (a scale a row) rounded at load; embeddings and head bf16"
    )
    spec = replace(spec, quantization=Quantization("gptq", (Rule(LAYERS, GPTQ),)))
    held = describe_held(held_weights(spec, "auto", ALL))
    assert held == "int4 (groups of 128) as stored; embeddings and head bf16"
    assert describe_held(held_weights(spec, "bf16", ALL)) == "bf16, dequantized from gptq int4"


def test_what_a_checkpoint_stores_unquantized_is_so_in_the_plan_too(spec_of):
    spec = replace(spec_of("llama-3-8b"), quantization=Quantization("gptq", (Rule(LAYERS, GPTQ),)))
    names = [f"model.layers.3.self_attn.{part}_proj.weight" for part in "qkv"]
    found = spec_as_stored(spec, {name: TensorInfo(name, "BF16", (1,), 0, 2, "f") for name in names})
    weights = {weight.name: weight for weight in held_weights(found, "auto", ALL)}
    assert weights["layers.3.qkv.weight"].held is None
    assert weights["layers.4.qkv.weight"].held is weights["layers.3.output.weight"].held is not None


def test_the_head_is_rounded_where_it_is_asked_for(spec_of):
    spec = spec_of("llama-3-8b")
    weights = held_weights(spec, "int4+fp8", ALL)
    assert held_name(weights) == "int4+fp8"
    head = "head fp8 (E4M3, a scale a row) rounded at load"
    assert describe_held(weights) == f"int4 (groups of 128) rounded at load; {head}; embeddings bf16"
    assert {weight.held for weight in weights if weight.role == "embedding"} == {None}
    assert held_name(held_weights(spec, "bf16+fp8", ALL)) == "bf16+fp8"
    assert held_name(held_weights(spec, "bf16+fp8", ("int4",))) == "bf16"  # no kernels
    gptq = replace(
        spec, quantization=Quantization("gptq", (Rule(LayerNames(("lm_head",)), None), Rule(LAYERS, GPTQ)))
    )
    assert held_name(held_weights(gptq, "auto+fp8", ALL)) == "int4+fp8"
    stored = replace(spec, quantization=Quantization("gptq", (Rule(LAYERS, GPTQ),)))  # the head too
    assert held_name(held_weights(stored, "auto+fp8", ALL)) == "int4"


def test_holding_keeps_everything_else():
    weight = projection()
    assert hold([weight], "fp8", ALL) == (replace(weight, held=PACKED_FORMATS["fp8"]),)
