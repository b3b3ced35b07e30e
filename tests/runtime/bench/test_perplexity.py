"""Perplexity: by its formula, whatever the steps, and as the command prints it."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from small_checkpoint import CONFIG, write_checkpoint

from wisp_plan.kv_formats.layers import SERVED_KV_FORMATS
from wisp_runtime.bench import perplexity
from wisp_runtime.cli.main import main
from wisp_runtime.layers.cache import allocate_blocks
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.models.single_sequence import sequence_batch
from wisp_runtime.models.text_tokens import read_tokens
from wisp_runtime.ops.cpu.ops import CpuOps

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. " * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model") / "small"
    write_checkpoint(made, np.float32)
    return made


def test_the_likelihood_is_the_softmax_at_the_target():
    logits = np.array([[0, math.log(3)], [100, 100], [-1e4, 0]], np.float32)
    assert perplexity.negative_log_likelihood(logits, np.array([1, 0, 1])) == pytest.approx(
        math.log(4 / 3) + math.log(2), rel=1e-6
    )


@pytest.mark.parametrize("window", [64, 40, 7])
def test_each_token_of_a_window_is_predicted_from_those_before_it(folder, window, monkeypatch):
    monkeypatch.setattr(perplexity, "_STEP_TOKENS", 16)
    found = perplexity.perplexity_of(folder, TEXT, window=window, threads=1, on_progress=lambda *_: None)
    ops, spec = CpuOps(threads=1), read_spec(folder)
    tokens, model, nats, count = read_tokens(folder, TEXT, 70), load_model(folder, spec, ops), 0.0, 0
    for start in range(0, len(tokens) - 1, window):
        part = tokens[start : start + window]
        cache = allocate_blocks(spec, ops, blocks=4, block_tokens=16)
        rows = model.forward(sequence_batch(part, 0, 64, range(len(part))), cache).logits.astype(np.float64)
        chances = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
        nats -= sum(math.log(chances[at, token]) for at, token in enumerate(part[1:]))
        count += len(part) - 1
    assert found.tokens == count
    assert found.nats == pytest.approx(nats, rel=1e-5)
    assert found.value == pytest.approx(math.exp(nats / count), rel=1e-5)


def test_the_command_prints_a_line_a_model(folder, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    arguments = ["bench", "perplexity", str(folder), str(folder), "--text", str(tmp_path / "text")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{folder}: ")
    assert first.partition(" tokens")[0] == second.partition(" tokens")[0]
    facts = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout.splitlines()[0])
    assert facts["tokens"] == len(TEXT) - math.ceil(len(TEXT) / CONFIG["max_position_embeddings"])
    assert f"{facts['perplexity']:.3f}" in first


@pytest.mark.parametrize("kv", SERVED_KV_FORMATS["cpu"])
def test_keys_and_values_may_be_quantized(folder, kv):
    found = {
        name: perplexity.perplexity_of(folder, TEXT, kv=name, threads=1, on_progress=lambda *_: None).nats
        for name in ("bf16", kv)
    }
    assert (found[kv] != found["bf16"]) == (kv != "bf16")
    assert found[kv] == pytest.approx(found["bf16"], rel=0.05)


def test_a_folder_without_a_model_is_one_sentence(tmp_path):
    (tmp_path / "text").write_text(TEXT)
    result = CliRunner().invoke(
        main, ["bench", "perplexity", str(tmp_path), "--text", str(tmp_path / "text")]
    )
    assert result.exit_code == 1
    assert result.output.startswith("wisp-runtime: ModelNotFound: ")
