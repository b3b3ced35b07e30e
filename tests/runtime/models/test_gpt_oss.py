"""A small gpt-oss, from bf16 and from MXFP4, through the engine, against its formulas in float64."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from float64_gpt_oss import Float64GptOss
from safetensors.numpy import load_file, save_file

from wisp_plan.families.config import parse_config
from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.startup import start
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.errors import WeightsUnreadable

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from test_engine_model import answers

WINDOW = 12
CONFIG = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "vocab_size": 96,
    "sliding_window": WINDOW,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 8.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
    "eos_token_id": 95,
}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def write(folder, *, is_mxfp4, gain=3.0, **changes):
    """Write a random checkpoint whose clamps, sinks and biases all matter; the more the higher the gain."""
    random, plain = np.random.default_rng(3), CONFIG | changes
    config = plain | ({"quantization_config": MXFP4} if is_mxfp4 else {})
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}
    for tensor in expected_tensors(parse_config(plain)):
        values = random.standard_normal(tensor.shape)
        if tensor.name.endswith(("_proj", "_proj.weight", "router.weight", "lm_head.weight")):
            values *= (4.0 if "o_proj" in tensor.name else gain) / np.sqrt(
                tensor.shape[-2 if values.ndim == 3 else -1]
            )
        if is_mxfp4 and values.ndim == 3:
            experts, inputs, outputs = values.shape
            blocks = random.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8)
            tensors[f"{tensor.name}_blocks"] = blocks
            smallest = 122 + round(np.log2(gain / np.sqrt(inputs / 16)))
            tensors[f"{tensor.name}_scales"] = random.integers(
                smallest, smallest + 3, blocks.shape[:-1], np.uint8
            )
        else:
            tensors[tensor.name] = values.astype(ml_dtypes.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module", params=["bf16", "mxfp4"])
def folder(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp("gpt_oss") / "model", is_mxfp4=request.param == "mxfp4")


def engine_of(folder):
    config = ServeConfig(str(folder), threads=1, block_tokens=4, max_step_tokens=32, max_concurrent=4)
    return start(config, lambda _: None)


def test_served_tokens_are_those_of_the_formulas(folder):
    engine, reference = engine_of(folder), Float64GptOss(folder)
    random, greedy = np.random.default_rng(1), SamplingParams(temperature=0.0)
    lengths = (1, WINDOW - 1, WINDOW, WINDOW + 1, 70)  # 70: three chunks, and past the trained context
    prompts = [tuple(random.integers(0, 95, length).tolist()) for length in lengths]
    requests = [Submit(str(n), prompt, 16, greedy, ignore_eos=True) for n, prompt in enumerate(prompts)]
    served, _ = answers(engine, requests)
    for n, prompt in enumerate(prompts):
        tokens = served[str(n)]
        logits = reference.logits([*prompt, *tokens])[len(prompt) - 1 : -1]
        assert tokens == logits.argmax(axis=1).tolist()
    assert len({token for tokens in served.values() for token in tokens}) > 20


def test_windowed_layers_have_a_pool_of_their_own(folder):
    pools = engine_of(folder).scheduler.limits.cache.pools
    assert [(pool.group.spec.window, pool.group.layers) for pool in pools] == [(WINDOW, (0, 2)), (None, (1,))]


def test_experts_in_another_layout_are_refused_with_both_shapes(tmp_path):
    folder = write(tmp_path / "model", is_mxfp4=False)
    file, name = folder / "model.safetensors", "model.layers.0.mlp.experts.down_proj"
    tensors = load_file(file)
    save_file(tensors | {name: np.ascontiguousarray(tensors[name].swapaxes(1, 2))}, file)
    with pytest.raises(WeightsUnreadable, match=r"down_proj is \[5, 64, 32\], must be \[5, 32, 64\]"):
        engine_of(folder)


def test_a_checkpoint_without_its_sinks_is_refused(tmp_path):
    folder = write(tmp_path / "model", is_mxfp4=True)
    file, name = folder / "model.safetensors", "model.layers.1.self_attn.sinks"
    save_file({key: value for key, value in load_file(file).items() if key != name}, file)
    with pytest.raises(WeightsUnreadable, match=f"1 tensor is missing: {name}"):
        engine_of(folder)
