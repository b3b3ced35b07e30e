"""Wrong quantized checkpoints: each is refused in one message that names tensor and remedy."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from quantized_checkpoints import FORMATS
from safetensors.numpy import load_file, save_file
from wrong_checkpoints import CASES, DOWN, Q, Wrong, section, write

from wisp_runtime.errors import RuntimeFailure
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.ops.cpu.ops import CpuOps

GENERATOR = Path(__file__).resolve().parents[2] / "bench/pages/refusals.py"


@pytest.mark.parametrize("wrong", CASES, ids=lambda wrong: wrong.name)
def test_a_wrong_checkpoint_is_refused_in_words(tmp_path, wrong):
    write(tmp_path, wrong)
    with pytest.raises(RuntimeFailure) as refusal:
        load_model(tmp_path, read_spec(tmp_path), CpuOps(threads=1))
    assert refusal.value.message.replace(f"{tmp_path}/", "").replace(f"{tmp_path}: ", "") == wrong.said


def test_the_page_of_refusals_lists_these():
    """Stale? ``python tests/bench/pages/refusals.py``."""
    generator = runpy.run_path(str(GENERATOR))
    assert generator["PAGE"].read_text() == generator["page"]()


def test_shards_that_overlap_are_refused(tmp_path):
    """Files of two downloads: a layer's scale lies in both."""
    write(tmp_path, Wrong("right", "ct int8", section(), ""))
    tensors = load_file(tmp_path / "model.safetensors")
    files = {
        "a.safetensors": tensors,
        "b.safetensors": {name: tensors[name] for name in (f"{Q}.weight_scale",)},
    }
    weight_map = {}
    for file, some in files.items():
        save_file(some, tmp_path / file)
        weight_map |= dict.fromkeys(some, file)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(RuntimeFailure) as refusal:
        load_model(tmp_path, read_spec(tmp_path), CpuOps(threads=1))
    assert refusal.value.message == (
        f"{tmp_path}: tensor {Q}.weight_scale is in both a.safetensors and b.safetensors. Files of two "
        "checkpoints are mixed: download the model into an empty folder."
    )


@pytest.mark.parametrize("missing", [5, 5000])
def test_a_file_that_ends_early_is_refused(tmp_path, missing):
    write(tmp_path, Wrong("right", "gptq", section(), ""))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-missing])
    with pytest.raises(RuntimeFailure, match=r"bytes.* of its tensors are missing; the file is truncated"):
        load_model(tmp_path, read_spec(tmp_path), CpuOps(threads=1))


@pytest.mark.parametrize("form", FORMATS)
def test_without_a_change_each_form_is_read(tmp_path, form):
    """So the cases above fail by their change alone."""
    write(tmp_path, Wrong("right", form, section(), ""))
    load_model(tmp_path, read_spec(tmp_path), CpuOps(threads=1))


@pytest.mark.parametrize(
    ("form", "suffix", "values"),
    [  # as published checkpoints have them
        ("gptq", "bias", np.zeros(64, np.float16)),  # AutoGPTQ
        ("awq symmetric", "qzeros", np.full((3, 8), 0x88888888, np.uint32).view(np.int32)),  # AutoRound
        ("ct int8", "weight_zero_point", np.zeros((64, 1), np.int8)),
        ("ct int4", "weight_g_idx", np.full(96, -1, np.int32)),
        ("ct nvfp4", "input_global_scale", np.ones(1, np.float32)),
        ("ct fp8 tensor", "input_scale", np.ones(1, np.float32)),
        ("fp8 tensor", "activation_scale", np.ones((), np.float32)),
        ("modelopt fp8", "k_scale", np.ones((), np.float32)),
        ("modelopt nvfp4", "weight_quantizer._double_scale", np.ones((), np.float32)),
        ("modelopt nvfp4", "pre_quant_scale", np.ones(96, np.float16)),
    ],
)
def test_tensors_that_change_nothing_are_no_reason_to_refuse(tmp_path, form, suffix, values):
    write(tmp_path, Wrong("right", form, lambda _, tensors: tensors.update({f"{DOWN}.{suffix}": values}), ""))
    load_model(tmp_path, read_spec(tmp_path), CpuOps(threads=1))
