"""Sections in files beside ``config.json``, where older exporters put them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wisp_plan.checkpoint.directory import read_config
from wisp_plan.errors import ConfigDamaged, ConfigInvalid
from wisp_plan.families.config_files import MAX_CONFIG_BYTES
from wisp_plan.quantization.awq import NIBBLE_ROWS
from wisp_plan.quantization.scheme import Quantization, Scheme

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}
LAYER = "model.layers.0.mlp.up_proj"
MODELOPT = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
GPTQ = {"bits": 4, "group_size": 128, "sym": True, "desc_act": False, "model_file_base_name": "model"}
AWQ = {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
AWQ_SCHEME = Scheme("awq", "int4", 1, 128, is_packed=True, has_zero_points=True, nibble_rows=NIBBLE_ROWS)


def read(folder: Path, **files: object) -> Quantization | None:
    """Read a model's folder with these files, whose names have __ for a dot."""
    for name, content in ({"config__json": CONFIG} | files).items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return read_config(folder).quantization


@pytest.mark.parametrize(
    ("files", "scheme"),
    [
        ({"hf_quant_config__json": {"quantization": MODELOPT}}, Scheme("modelopt", "fp8", 0, 0)),
        ({"quantize_config__json": GPTQ}, Scheme("gptq", "int4", 1, 128, is_packed=True)),
        ({"quant_config__json": AWQ}, AWQ_SCHEME),
        (
            {"quantize_config__json": AWQ | {"quant_method": "awq"}},  # AutoGPTQ's file of another method
            AWQ_SCHEME,
        ),
    ],
)
def test_the_file_of_an_older_exporter_stands_for_the_section(tmp_path, files, scheme):
    quantization = read(tmp_path, **files)
    assert quantization is not None
    assert quantization.scheme_of(LAYER) == scheme
    assert quantization.scheme_of("lm_head") is None


def test_scales_of_the_kv_cache_are_known_from_such_a_file(tmp_path):
    quantization = read(tmp_path, hf_quant_config__json={"quantization": MODELOPT})
    assert quantization is not None
    assert quantization.kv == "fp8"


def test_the_section_of_config_json_comes_first(tmp_path):
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    config = CONFIG | {"quantization_config": section}
    quantization = read(tmp_path, config__json=config, hf_quant_config__json={"quantization": MODELOPT})
    assert quantization is not None
    assert quantization.scheme_of(LAYER) == Scheme("modelopt", "nvfp4", 1, 16, is_packed=True)


def test_a_folder_without_such_a_file_is_not_quantized(tmp_path):
    assert read(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (
            MODELOPT | {"quant_algo": "INT4_AWQ"},
            ConfigInvalid,
            "hf_quant_config.json: quant_algo is INT4",
        ),
        ([], ConfigInvalid, "hf_quant_config.json holds a list"),
        ("{", ConfigDamaged, "hf_quant_config.json is not JSON"),
        ("{}" + " " * MAX_CONFIG_BYTES, ConfigDamaged, "hf_quant_config.json has more than"),
    ],
)
def test_what_is_wrong_in_it_is_named_with_the_file(tmp_path, content, error, words):
    with pytest.raises(error, match=words):
        read(tmp_path, hf_quant_config__json=content)
