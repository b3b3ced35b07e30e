"""Hybrids of Gated DeltaNet from files: names with and without images, what is not read, in the engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.startup import start
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from test_engine_model import TINY, answers, write_tiny

HYBRID = TINY | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "rms_norm_eps": 1e-6,
}


def with_images(plain, folder):
    """Write the checkpoint in ``plain`` as one that reads images too, and drafts tokens."""
    folder.mkdir()
    text = {key: value for key, value in HYBRID.items() if key != "architectures"}
    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        name.replace("model.", "model.language_model."): array
        for name, array in load_file(plain / "model.safetensors").items()
    }
    more = {"model.visual.patch_embed.weight": np.zeros((3, 5)), "mtp.fc.weight": np.zeros((4, 4))}
    save_file(
        tensors | {name: array.astype(np.float32) for name, array in more.items()},
        folder / "model.safetensors",
    )
    return folder


def serve(folder, notes=None):
    phases = [] if notes is None else notes
    config = ServeConfig(str(folder), threads=1, block_tokens=4, max_step_tokens=48, max_concurrent=8)
    return start(config, phases.append)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    plain = write_tiny(folder / "plain", config=HYBRID)
    return plain, with_images(plain, folder / "images")


def test_a_checkpoint_with_images_gives_the_same_text_and_says_what_is_not_read(folders):
    prompt = tuple(np.random.default_rng(1).integers(0, 96, 70).tolist())
    request = Submit("a", prompt, 20, SamplingParams(temperature=0.0))
    phases = []
    plain, images = serve(folders[0]), serve(folders[1], phases)
    expected, _ = answers(plain, [request])
    assert answers(images, [request])[0] == expected
    assert len(set(expected["a"])) > 4, "the model says the same whatever it is asked"
    (note,) = [phase.note for phase in phases if phase.name == "weights" and phase.is_done]
    assert note == "float32; not read: model.visual.* (1 tensor, 60 B), mtp.* (1 tensor, 64 B)"
