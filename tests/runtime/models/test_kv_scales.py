"""Scales of the KV cache in checkpoints: the names that exporters give them, and those that are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from wisp_plan.families.config import parse_config
from wisp_plan.kv_formats.layers import KV_FORMATS
from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.errors import WeightsUnreadable
from wisp_runtime.models.kv_scales import read_kv_scales

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}


def checkpoint(folder, scales, quantization=None):
    """Write a checkpoint with ``scales`` by the end of their names, of layer 1."""
    config = CONFIG | ({"quantization_config": quantization} if quantization else {})
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        tensor.name: np.zeros(tensor.shape, np.float32) for tensor in expected_tensors(parse_config(CONFIG))
    }
    named = {f"model.layers.1.self_attn.{name}": np.array(value) for name, value in scales.items()}
    save_file(tensors | named, folder / "model.safetensors")
    return folder, parse_config(config)


@pytest.mark.parametrize(
    ("scales", "expect"),
    [
        ({}, {}),
        ({"k_proj.k_scale": np.float32(0.5), "v_proj.v_scale": np.float32([2.0])}, {1: (0.5, 2.0)}),
        (
            {"k_proj.output_scale": np.float16(0.5), "v_proj.output_scale": np.float16(0.25)},
            {1: (0.5, 0.25)},
        ),
        ({"attn.k_scale": np.float32(3.0)}, {1: (3.0, 1.0)}),
        ({"kv_scale": np.float32(0.125)}, {1: (0.125, 0.125)}),
        # the scale of one is more specific than that of both
        ({"kv_scale": np.float32(0.125), "attn.v_scale": np.float32(4.0)}, {1: (0.125, 4.0)}),
        # scales of weights and activations are none of the cache
        ({"k_proj.weight_scale": np.float32(9.0), "k_proj.input_scale": np.float32(9.0)}, {}),
    ],
)
def test_scales_are_found_by_every_name(tmp_path, scales, expect):
    path, spec = checkpoint(tmp_path, scales)
    assert read_kv_scales(path, spec, KV_FORMATS["fp8"]) == expect


@pytest.mark.parametrize(
    ("stored_for", "kv_format", "expect"),
    [
        ("FP8", "fp8", {1: (0.5, 1.0)}),
        ("FP8", "nvfp4", {}),  # scales of FP8 reach to 448, those of NVFP4 to 2,688
        ("NVFP4", "nvfp4", {1: (0.5, 1.0)}),
        ("NVFP4", "fp8", {}),
        ("FP8", "turbo8", {}),
        ("FP8", "bf16", {}),
    ],
)
def test_scales_serve_the_format_that_they_were_made_for(tmp_path, stored_for, kv_format, expect):
    section = MODELOPT | {"kv_cache_quant_algo": stored_for}
    path, spec = checkpoint(tmp_path, {"k_proj.k_scale": np.float32(0.5)}, section)
    assert read_kv_scales(path, spec, KV_FORMATS[kv_format]) == expect


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.float32(np.nan), "is nan, must be above 0 and finite"),
        (np.float32(0), "is 0.0, must be above 0"),
        (np.float32(-1), "is -1.0, must be above 0"),
        (np.ones(2, np.float32), r"is F32 \[2\], must be one number"),
        (np.int32(1), r"is I32 \[\], must be one number"),
    ],
)
def test_a_scale_that_is_none_is_named_with_the_remedy(tmp_path, value, said):
    path, spec = checkpoint(tmp_path, {"k_proj.k_scale": value})
    with pytest.raises(WeightsUnreadable, match=said) as caught:
        read_kv_scales(path, spec, KV_FORMATS["fp8"])
    assert "model.layers.1.self_attn.k_proj.k_scale, a scale of the KV cache" in caught.value.message
    assert "--kv-cache-dtype bf16" in caught.value.message
