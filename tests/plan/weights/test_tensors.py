"""Tensors that a model needs, and the messages about a checkpoint that lacks them."""

from __future__ import annotations

import re

import pytest

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.errors import TensorsMismatch
from wisp_plan.presets import shape_spec
from wisp_plan.weights.tensors import check_tensors, compare, expected_tensors


def checkpoint(spec, **changes):
    """Tensors of a whole checkpoint of ``spec``; keywords give (dtype, shape) by name, None drops one."""
    tensors = {
        wanted.name: TensorInfo(wanted.name, "BF16", wanted.shape, 0, 0, "model.safetensors")
        for wanted in expected_tensors(spec)
    }
    for name, change in changes.items():
        if change is None:
            del tensors[name]
        else:
            tensors[name] = TensorInfo(name, change[0], change[1], 0, 0, "model.safetensors")
    return tensors


@pytest.mark.parametrize(
    ("model", "tensors"),
    [  # 9 a layer, with embedding, norm and head; as the published indexes count
        ("llama-3-8b", 291),
        ("llama-3.2-1b", 146),
        ("qwen2.5-7b", 339),
        ("qwen3-8b", 399),
        ("mistral-7b-v0.1", 291),
        ("smollm2-135m", 272),
    ],
)
def test_a_real_model_needs_as_many_tensors_as_its_index_lists(spec_of, model, tensors):
    names = [wanted.name for wanted in expected_tensors(spec_of(model))]
    assert len(names) == len(set(names)) == tensors


@pytest.mark.parametrize(
    ("model", "name", "shape"),
    [
        ("llama-3-8b", "model.embed_tokens.weight", (128256, 4096)),
        ("llama-3-8b", "lm_head.weight", (128256, 4096)),
        ("llama-3-8b", "model.layers.31.self_attn.k_proj.weight", (1024, 4096)),
        ("llama-3-8b", "model.layers.0.mlp.down_proj.weight", (4096, 14336)),
        ("qwen2.5-7b", "model.layers.5.self_attn.v_proj.bias", (512,)),
        ("qwen3-0.6b", "model.layers.5.self_attn.q_norm.weight", (128,)),
        ("qwen3-0.6b", "model.layers.0.self_attn.o_proj.weight", (1024, 2048)),
        ("smollm2-135m", "model.norm.weight", (576,)),
    ],
)
def test_shapes_are_those_of_the_published_files(spec_of, model, name, shape):
    assert {wanted.name: wanted.shape for wanted in expected_tensors(spec_of(model))}[name] == shape


def test_a_complete_checkpoint_is_usable(spec_of):
    spec = spec_of("smollm2-135m")
    result = check_tensors(spec, checkpoint(spec))
    assert (result.missing, result.mismatched, result.extra) == ((), (), ())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.norm.weight": None}, "1 tensor is missing: model.norm.weight"),
        ({"model.norm.weight": ("BF16", (577,))}, "model.norm.weight is [577], must be [576]"),
        ({"model.norm.weight": ("I32", (576,))}, "model.norm.weight is I32, must be BF16 or F16 or F32"),
    ],
)
def test_faults_of_a_checkpoint_are_reported(spec_of, changes, said):
    spec = spec_of("smollm2-135m")
    with pytest.raises(TensorsMismatch) as caught:
        check_tensors(spec, checkpoint(spec, **changes))
    assert said in caught.value.message
    assert "LlamaForCausalLM" in caught.value.message


def test_many_missing_tensors_are_counted_not_listed(spec_of):
    spec = spec_of("smollm2-135m")
    with pytest.raises(TensorsMismatch, match=r"272 tensors are missing: .*, and 268 more"):
        check_tensors(spec, {})


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_every_dtype_we_convert_is_usable(spec_of, dtype):
    spec = spec_of("smollm2-135m")
    assert compare(spec, checkpoint(spec, **{"model.norm.weight": (dtype, (576,))})).is_usable


@pytest.mark.parametrize(
    ("name", "is_listed"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", False),  # old checkpoints store it; it is recomputed
        ("lm_head.weight", False),  # a stored copy of a tied head
        ("model.vision.weight", True),
    ],
)
def test_extra_tensors_harm_nothing(spec_of, name, is_listed):
    spec = spec_of("smollm2-135m")
    result = check_tensors(spec, checkpoint(spec, **{name: ("F32", (3,))}))
    assert result.is_usable
    assert (name in result.extra) is is_listed


FUSED = "model.layers.1.mlp.experts.gate_up_proj"
APART = "model.layers.1.mlp.experts.0.gate_proj.weight"


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        (FUSED, (128, 1536, 2048), f"{APART} and {FUSED} are both stored"),
        # What another download left is a part of them, and none of gate and up.
        (
            "model.layers.0.mlp.experts.down_proj",
            (128, 2048, 768),
            "model.layers.0.mlp.experts.0.down_proj.weight and model.layers.0.mlp.experts.down_proj are both",
        ),
    ],
)
def test_experts_that_are_stored_in_two_ways_are_refused(name, shape, said):
    spec = shape_spec("qwen3-30b-a3b")
    tensors = checkpoint(spec)
    assert compare(spec, tensors).is_usable
    with pytest.raises(TensorsMismatch, match=said):
        check_tensors(spec, tensors | {name: TensorInfo(name, "BF16", shape, 0, 0, "")})


def test_one_expert_that_is_left_beside_all_in_one_tensor_is_refused():
    spec = shape_spec("qwen3-30b-a3b")
    apart, fused = re.compile(r".*\.experts\.\d+\..*"), {}
    for layer in range(48):
        block = f"model.layers.{layer}.mlp.experts"
        fused[f"{block}.gate_up_proj"] = (128, 1536, 2048)
        fused[f"{block}.down_proj"] = (128, 2048, 768)
    tensors = {name: info for name, info in checkpoint(spec).items() if not apart.fullmatch(name)}
    tensors |= {name: TensorInfo(name, "BF16", shape, 0, 0, "") for name, shape in fused.items()}
    assert compare(spec, tensors).is_usable
    left = "model.layers.7.mlp.experts.90.up_proj.weight"
    with pytest.raises(TensorsMismatch, match=f"{left} and model.layers.7.mlp.experts.gate_up_proj are both"):
        compare(spec, tensors | {left: TensorInfo(left, "BF16", (768, 2048), 0, 0, "")})
