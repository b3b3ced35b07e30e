"""Prompts that are reduced to a vector on a GPU: against float64, alone or beside sequences that decode."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

from wisp_plan.families.config import parse_config  # noqa: E402
from wisp_plan.weights.tensors import expected_tensors  # noqa: E402
from wisp_runtime.config import ServeConfig  # noqa: E402
from wisp_runtime.engine import startup  # noqa: E402
from wisp_runtime.engine.loop import run  # noqa: E402
from wisp_runtime.engine.transport.messages import Pooling, SamplingParams, Submit  # noqa: E402

sys.path[:0] = [str(Path(__file__).parents[2] / "runtime" / name) for name in ("models", "support")]
from float64_llama import Float64Llama  # noqa: E402
from scripted_channel import ScriptedChannel  # noqa: E402

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
MIN_COSINE = 0.9995
"""Of a hidden state after three layers, each rounded to bf16 some ten times (2^-9 relative)."""


def write(folder):
    """Weights that bf16 holds exactly: those of the reference are the GPU's."""
    random = np.random.default_rng(11)
    tensors = {}
    for tensor in expected_tensors(parse_config(CONFIG)):
        values = random.standard_normal(tensor.shape) / np.sqrt(tensor.shape[-1])
        values = np.ones(tensor.shape) if values.ndim == 1 else values
        bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        tensors[tensor.name] = bits.view(np.float32)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module", params=["general", "auto"])
def model(request, tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("pooling") / "qwen3")
    config = ServeConfig(
        model=str(folder), device="cuda", max_step_tokens=256, max_concurrent=16, decode_path=request.param
    )
    return startup.start(config, lambda _: None), Float64Llama(folder)


def prompts():
    random = np.random.default_rng(5)
    return [random.integers(0, 1024, size).tolist() for size in (1, 2, 15, 16, 17, 100, 300, 700)]


def chat(name, prompt):
    return Submit(name, tuple(prompt), 40, SamplingParams(temperature=0.0), ignore_eos=True)


def vectors(engine, requests):
    """Vectors of the requests that are pooled, by id."""
    channel = ScriptedChannel(*requests)
    run(channel, engine.scheduler, engine.runner)
    assert all(event.finish in (None, "stop", "length") for event in channel.events)
    pooled = [event for event in channel.events if event.pooled is not None]
    return {event.request_id: np.frombuffer(event.pooled, np.float32).astype(float) for event in pooled}


def cosine(a, b):
    return a @ b / np.sqrt((a @ a) * (b @ b))


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("beside", [0, 6])
def test_hidden_states_and_logits_are_those_of_the_formula(model, shares, beside):
    engine, reference = model
    tokens = (3, 77, 1000)
    requests = [chat(f"c{n}", [n + 1] * 9) for n in range(beside)]
    for n, prompt in enumerate(prompts()):
        for name, pooling in (("last", Pooling("last")), ("logits", Pooling("logits", tokens))):
            fields = {"pooling": pooling, "use_prefix_cache": shares}
            requests.append(Submit(f"{name}{n}", tuple(prompt), 1, SamplingParams(temperature=0), **fields))
    found = vectors(engine, requests)
    again = vectors(engine, requests)  # with prefix hits, if they are shared
    for n, prompt in enumerate(prompts()):
        state = reference.states(prompt)[-1]
        logits = reference.logits(prompt)
        noise = 0.15 * logits.std()
        for got in (found, again):
            assert cosine(got[f"last{n}"], state) > MIN_COSINE
            np.testing.assert_allclose(got[f"logits{n}"], logits[list(tokens)], atol=noise)


def test_a_gpu_computes_no_means_and_says_so(model):
    engine, _ = model
    assert engine.ready.poolings == {"last", "logits"}
    event = engine.scheduler.submit(Submit("m", (1, 2), 1, pooling=Pooling("mean")))
    assert event.finish == "refused"
