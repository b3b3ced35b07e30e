"""Mixtures of experts are quantized expert by expert; routers never, experts in one tensor not yet."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_checkpoint import tensors_of, write_checkpoint

from wisp_runtime.models.load import load_model, open_checkpoint, read_spec
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.quantize.formats import TARGETS
from wisp_runtime.quantize.quantizing import Options, quantize

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
# Half a step of the coarsest number over the largest of a group of normal numbers, with some spare.
ERRORS = {"fp8": 0.04, "int8": 0.01, "int4": 0.15, "nvfp4": 0.15}


@pytest.fixture
def mixture(tmp_path):
    write_checkpoint(tmp_path / "source", **CONFIG)
    return tmp_path / "source"


def expert_rows(folder, name, expert):
    ops = CpuOps(threads=1)
    held = load_model(folder, read_spec(folder), ops).weights[name][expert]
    return ops.embedding(np.arange(held.outputs), held)


@pytest.mark.parametrize("to", TARGETS)
def test_each_expert_is_read_as_weights_near_the_source(mixture, tmp_path, to):
    made = quantize(mixture, tmp_path / "made", Options(to, "rtn", threads=2))
    assert made.layers == 2 * (4 + 3 * 4)
    assert made.kept == ()
    for name in ("layers.0.experts.gate_up.weight", "layers.1.experts.down.weight"):
        meant, read = (expert_rows(folder, name, 3) for folder in (mixture, tmp_path / "made"))
        assert 0 < np.linalg.norm(read - meant) / np.linalg.norm(meant) < ERRORS[to]


def test_routers_stay_as_they_are_and_are_listed(mixture, tmp_path):
    quantize(mixture, tmp_path / "made", Options("fp8"))
    before, after = (tensors_of(folder) for folder in (mixture, tmp_path / "made"))
    router = "model.layers.1.mlp.gate.weight"
    np.testing.assert_array_equal(after[router], before[router])
    section = json.loads((tmp_path / "made/config.json").read_text())["quantization_config"]
    assert section["ignore"] == ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]


def test_experts_of_one_matrix_each_share_a_tensor_scale_with_their_own_alone(mixture, tmp_path):
    stored = load_file(mixture / "model.safetensors")
    name = "model.layers.0.mlp.experts.{}.up_proj.weight"
    stored[name.format(2)] = (8 * stored[name.format(2)].astype(np.float32)).astype(ml_dtypes.bfloat16)
    save_file(stored, mixture / "model.safetensors")
    quantize(mixture, tmp_path / "made", Options("nvfp4", "rtn"))
    made = tensors_of(tmp_path / "made")
    scales = [made[f"model.layers.0.mlp.experts.{e}.gate_proj.weight_global_scale"].item() for e in range(4)]
    assert scales[2] < 0.5 * min(scales[:2])


def test_experts_in_one_tensor_are_kept_and_it_is_said(mixture, tmp_path):
    stored = load_file(mixture / "model.safetensors")
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts"
        parts = [
            [stored.pop(f"{prefix}.{e}.{p}_proj.weight") for e in range(4)] for p in ("gate", "up", "down")
        ]
        stored[f"{prefix}.gate_up_proj"] = np.concatenate(parts[:2], axis=1)
        stored[f"{prefix}.down_proj"] = np.stack(parts[2])
    save_file(stored, mixture / "model.safetensors")
    made = quantize(mixture, tmp_path / "made", Options("int4", threads=2))
    assert {kept.layer for kept in made.kept} == {
        f"model.layers.{layer}.mlp.experts.{part}_proj" for layer in range(2) for part in ("gate_up", "down")
    }
    assert {kept.reason for kept in made.kept} == {"it is a part of a tensor, or one of several in it"}
    assert open_checkpoint(tmp_path / "made", read_spec(tmp_path / "made")).weights
