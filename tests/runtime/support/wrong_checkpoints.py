"""Wrong quantized checkpoints, each with the one message that refuses it, naming tensor and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import numpy as np
from quantized_checkpoints import FORMATS
from safetensors.numpy import save_file

from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.models.load import read_spec

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 40,
    "tie_word_embeddings": True,
}
LAYER = "model.layers.0"
DOWN, Q, K = f"{LAYER}.mlp.down_proj", f"{LAYER}.self_attn.q_proj", f"{LAYER}.self_attn.k_proj"
Change = Callable[[dict, dict], object]


class Wrong(NamedTuple):
    """A wrong checkpoint.

    Attributes:
        name: sentence about it.
        form: format that it is made from.
        change: function that spoils its section of config.json and its tensors.
        said: message, after the reason and the folder.
    """

    name: str
    form: str
    change: Change
    said: str


def section(**changed) -> Change:
    return lambda config, _: config.update(changed)


def group(**changed) -> Change:
    return lambda config, _: config["config_groups"]["group_0"]["weights"].update(changed)


def drop(*names) -> Change:
    return lambda _, tensors: [tensors.pop(name) for name in names]


def put(name, index, value) -> Change:
    def change(_, tensors):
        tensors[name][index] = value

    return change


def add(name, *values, dtype=np.float32) -> Change:
    return lambda _, tensors: tensors.update({name: np.array(values, dtype)})


def recast(name, dtype) -> Change:
    def change(_, tensors):
        tensors[name] = tensors[name].astype(dtype)

    return change


def narrowed(name) -> Change:
    def change(_, tensors):
        tensors[name] = np.ascontiguousarray(tensors[name][:, :-1])

    return change


CHOOSE = "Choose another checkpoint of the model."
NOT_READ = f"a format that is not read; docs/checkpoints.md lists those that are. {CHOOSE}"
CONFIG_REMEDY = "Take config.json from the model's own repository."
AGAIN = "Download config.json and the weights again, from the same revision."
DAMAGED = "The file is damaged: download it again."
ASYMMETRIC = (
    "has zero points, but quantization_config says that the numbers of its layer are symmetric. Take "
    "config.json from the same repository as the weights."
)
MISMATCH = "the checkpoint does not match config.json (LlamaForCausalLM):"
KEY = "config.json: quantization_config."
FILE = "model.safetensors: "

CASES = [
    # config.json
    Wrong(
        "unknown method",
        "gptq",
        section(quant_method="bitsandbytes"),
        f"{KEY}quant_method is bitsandbytes, {NOT_READ}",
    ),
    Wrong(
        "no method",
        "gptq",
        section(quant_method=None),
        f"{KEY}quant_method is None; expected a string. {CONFIG_REMEDY}",
    ),
    Wrong(
        "unknown format",
        "ct int4",
        section(format="marlin-24"),
        f"{KEY}config_groups.group_0.format is marlin-24 with 4 bits of type int, {NOT_READ}",
    ),
    Wrong(
        "3 bits",
        "ct int4",
        group(num_bits=3),
        f"{KEY}config_groups.group_0.format is pack-quantized with 3 bits of type int, {NOT_READ}",
    ),
    Wrong(
        "unknown strategy",
        "ct fp8 channel",
        group(strategy="attn_head"),
        f"{KEY}config_groups.group_0.weights.strategy is attn_head, {NOT_READ}",
    ),
    Wrong(
        "sparse",
        "ct int8",
        section(sparsity_config={"format": "sparse-24-bitmask"}),
        f"{KEY}sparsity_config.format is sparse-24-bitmask, {NOT_READ}",
    ),
    Wrong(
        "no groups of layers",
        "ct int8",
        section(config_groups={}),
        f"{KEY}config_groups is {{}}; expected an object of groups of layers. {CONFIG_REMEDY}",
    ),
    Wrong(
        "a group of 100",
        "gptq",
        section(group_size=100),
        f"{KEY}group_size is 100; expected a multiple of 16 from 16 to 1024, or -1. {CONFIG_REMEDY}",
    ),
    Wrong(
        "a layout of gptq that is not read",
        "gptq",
        section(checkpoint_format="marlin"),
        f"{KEY}checkpoint_format is marlin, {NOT_READ}",
    ),
    Wrong("awq's gemv", "awq", section(version="gemv"), f"{KEY}version is gemv, {NOT_READ}"),
    Wrong(
        "an unknown algorithm",
        "modelopt fp8",
        section(quant_algo="INT4_AWQ"),
        f"{KEY}quant_algo is INT4_AWQ, {NOT_READ}",
    ),
    Wrong(
        "a block of one number",
        "fp8 block",
        section(weight_block_size=[128]),
        f"{KEY}weight_block_size is [128]; expected two whole numbers from 1 to 1024. {CONFIG_REMEDY}",
    ),
    Wrong("fp4 experts", "fp8 block", section(expert_dtype="fp4"), f"{KEY}expert_dtype is fp4, {NOT_READ}"),
    Wrong(
        "a regex that may never end",
        "ct int8",
        section(ignore=["re:(a+)+"]),
        f"{KEY}ignore has re:(a+)+, a regex with a repeat inside of a repeat. {CONFIG_REMEDY}",
    ),
    Wrong(
        "a list of layers that is none",
        "fp8 tensor",
        section(modules_to_not_convert="lm_head"),
        f"{KEY}modules_to_not_convert is 'lm_head'; expected a list. {CONFIG_REMEDY}",
    ),
    # tensors that are there
    Wrong(
        "a scale is missing",
        "ct fp8 channel",
        drop(f"{DOWN}.weight_scale"),
        f"{MISMATCH} 1 tensor is missing: {DOWN}.weight_scale. {AGAIN}",
    ),
    Wrong(
        "values are missing",
        "ct int4",
        drop(f"{DOWN}.weight_packed"),
        f"{MISMATCH} 1 tensor is missing: {DOWN}.weight_packed. {AGAIN}",
    ),
    Wrong(
        "zero points are missing",
        "awq",
        drop(f"{DOWN}.qzeros"),
        f"{MISMATCH} 1 tensor is missing: {DOWN}.qzeros. {AGAIN}",
    ),
    Wrong(
        "act-order without g_idx",
        "gptq ordered",
        drop(f"{DOWN}.g_idx"),
        f"{MISMATCH} 1 tensor is missing: {DOWN}.g_idx. {AGAIN}",
    ),
    Wrong(
        "a tensor's scale is missing",
        "ct nvfp4",
        drop(f"{DOWN}.weight_global_scale"),
        f"{MISMATCH} 1 tensor is missing: {DOWN}.weight_global_scale. {AGAIN}",
    ),
    Wrong(
        "a section is missing",
        "gptq",
        lambda config, _: config.clear(),
        f"{Q}.qweight is quantized, but config.json has no quantization_config that says so of its "
        "layer. Take config.json from the same repository as the weights.",
    ),
    Wrong(
        "an ignored layer is quantized",
        "ct int4",
        section(ignore=[DOWN]),
        f"{DOWN}.weight_packed is quantized, but config.json has no quantization_config that says "
        "so of its layer. Take config.json from the same repository as the weights.",
    ),
    Wrong(
        "Q and K are stored unlike",
        "gptq",
        section(dynamic={"-:.*k_proj": {}}),
        f"{K}.weight is stored unquantized, and {Q}.weight, which is computed together with it, as "
        "gptq int4. Choose a checkpoint that stores both alike.",
    ),
    # shapes and dtypes
    Wrong(
        "another group",
        "ct int4",
        group(group_size=16),
        f"{MISMATCH} 7 tensors differ: {Q}.weight_scale is [64, 2], must be [64, 4], "
        f"{K}.weight_scale is [32, 2], must be [32, 4], {LAYER}.self_attn.v_proj.weight_scale is "
        f"[32, 2], must be [32, 4], {LAYER}.self_attn.o_proj.weight_scale is [64, 2], must be [64, "
        f"4], and 3 more. {AGAIN}",
    ),
    Wrong(
        "columns that no group divides",
        "ct int4",
        group(group_size=64),
        f"{DOWN}.weight has 96 columns, which do not split into the groups of 64 that "
        "quantization_config says share a scale. Choose a checkpoint whose groups divide them.",
    ),
    Wrong(
        "values of another dtype",
        "ct fp8 channel",
        recast(f"{DOWN}.weight", np.int8),
        f"{MISMATCH} 1 tensor differs: {DOWN}.weight is I8, must be F8_E4M3. {AGAIN}",
    ),
    Wrong(
        "scales of another dtype",
        "ct int8",
        recast(f"{DOWN}.weight_scale", np.int32),
        f"{MISMATCH} 1 tensor differs: {DOWN}.weight_scale is I32, must be F32 or BF16 or F16. {AGAIN}",
    ),
    Wrong(
        "too few columns",
        "ct int4",
        narrowed(f"{DOWN}.weight_packed"),
        f"{MISMATCH} 1 tensor differs: {DOWN}.weight_packed is [64, 11], must be [64, 12]. {AGAIN}",
    ),
    Wrong(
        "too few groups",
        "ct nvfp4",
        narrowed(f"{DOWN}.weight_scale"),
        f"{MISMATCH} 1 tensor differs: {DOWN}.weight_scale is [64, 5], must be [64, 6]. {AGAIN}",
    ),
    Wrong(
        "weight_shape disagrees",
        "ct int4",
        put(f"{DOWN}.weight_shape", 0, 63),
        f"{FILE}{DOWN}.weight_shape says [63, 96], but {DOWN}.weight must be [64, 96]. {AGAIN}",
    ),
    # tensors that would change weights, but are not read
    Wrong(
        "a tensor that nothing reads",
        "modelopt nvfp4",
        add(f"{DOWN}.weight_quantizer._svdquant_lora_a", 1.0),
        f"{DOWN}.weight_quantizer._svdquant_lora_a belongs to a quantized layer, whose weights may be "
        f"others with it, but it is not read. {CHOOSE}",
    ),
    Wrong(
        "scales of a layer's inputs",
        "modelopt nvfp4",
        add(f"{DOWN}.pre_quant_scale", 1.0, 0.5),
        f"{FILE}{DOWN}.pre_quant_scale scales the inputs of its layer, which is not done. {CHOOSE}",
    ),
    Wrong(
        "zero points of symmetric numbers, gptq",
        "gptq",
        put(f"{DOWN}.qzeros", (0, 0), 0x77777767),
        f"{FILE}{DOWN}.qzeros {ASYMMETRIC}",
    ),
    Wrong(
        "zero points of symmetric numbers, compressed-tensors",
        "ct int8",
        add(f"{DOWN}.weight_zero_point", 0, 1, dtype=np.int8),
        f"{FILE}{DOWN}.weight_zero_point {ASYMMETRIC}",
    ),
    Wrong(
        "act-order that config.json conceals",
        "gptq ordered",
        section(desc_act=False),
        f"{FILE}{DOWN}.g_idx has columns in act-order, but quantization_config does not say so. "
        "Take config.json from the same repository as the weights.",
    ),
    Wrong(
        "a bias that the model has not",
        "gptq",
        add(f"{DOWN}.bias", 0.0, 0.25),
        f"{FILE}{DOWN}.bias is a bias that is not zero, but by config.json the model has none there. "
        "Take config.json from the same repository as the weights.",
    ),
    # values
    Wrong(
        "a weight that is NaN",
        "modelopt mxfp8",
        put(f"{DOWN}.weight", (63, 95), np.nan),
        f"{FILE}{DOWN}.weight has a weight that is not finite. {DAMAGED}",
    ),
    Wrong(
        "a scale that is NaN",
        "ct int8",
        put(f"{DOWN}.weight_scale", (3, 0), np.nan),
        f"{FILE}{DOWN}.weight_scale has a scale that is not finite. {DAMAGED}",
    ),
    Wrong(
        "an infinite f16 scale",
        "gptq",
        put(f"{DOWN}.scales", (1, 5), -np.inf),
        f"{FILE}{DOWN}.scales has a scale that is not finite. {DAMAGED}",
    ),
    Wrong(
        "a scale below zero",
        "ct fp8 channel",
        put(f"{DOWN}.weight_scale", (1, 0), -0.5),
        f"{FILE}{DOWN}.weight_scale has a scale below zero or not finite. {DAMAGED}",
    ),
    Wrong(
        "an infinite scale",
        "fp8 block",
        put(f"{DOWN}.weight_scale_inv", (1, 1), np.inf),
        f"{FILE}{DOWN}.weight_scale_inv has a scale below zero or not finite. {DAMAGED}",
    ),
    Wrong(
        "an exponent that is NaN",
        "ct mxfp4",
        put(f"{DOWN}.weight_scale", (3, 1), 255),
        f"{FILE}{DOWN}.weight_scale has a scale of 255, which is no power of two but NaN. {DAMAGED}",
    ),
    Wrong(
        "a tensor's scale of zero",
        "ct nvfp4",
        put(f"{DOWN}.weight_global_scale", 0, 0.0),
        f"{FILE}{DOWN}.weight_global_scale has a scale of zero for a whole tensor. {DAMAGED}",
    ),
    Wrong(
        "a group that is not there",
        "gptq ordered",
        put(f"{DOWN}.g_idx", 7, 3),
        f"{FILE}{DOWN}.g_idx has the group 3, but there are 3, of 32 columns. {DAMAGED}",
    ),
    Wrong(
        "groups of unlike sizes",
        "ct int4 ordered",
        put(f"{DOWN}.weight_g_idx", slice(0, 90), 1),
        f"{FILE}{DOWN}.weight_g_idx has groups of other sizes than 32 columns. {DAMAGED}",
    ),
]


def write(folder, wrong):
    """Write the checkpoint of a case."""
    base, writer = FORMATS[wrong.form]
    stated, random, tensors = deepcopy(base), np.random.default_rng(1), {}
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for tensor in expected_tensors(read_spec(folder)):
        if tensor.role == "projection":
            layer = tensor.name.removesuffix(".weight")
            made, _ = writer(random, *tensor.shape)
            tensors |= {layer + suffix: values for suffix, values in made.items()}
        else:
            tensors[tensor.name] = random.standard_normal(tensor.shape).astype(np.float32)
    wrong.change(stated, tensors)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps(CONFIG | ({"quantization_config": stated} if stated else {}))
    )
