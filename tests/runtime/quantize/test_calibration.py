"""Activation-aware scales: they change no result, lose less than rounding alone, and go on after a stop."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_checkpoint import CONFIG, write_checkpoint

from wisp_runtime.errors import ConfigError, TokenizerUnreadable
from wisp_runtime.layers.cache import allocate_blocks
from wisp_runtime.models.load import load_model, open_checkpoint, read_spec
from wisp_runtime.models.single_sequence import sequence_batch
from wisp_runtime.models.text_tokens import read_tokens
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.quantize import calibration as calibrating
from wisp_runtime.quantize.calibration import Calibration
from wisp_runtime.quantize.formats import TARGETS
from wisp_runtime.quantize.layer_inputs import LayerRunner
from wisp_runtime.quantize.plan import plan_checkpoint
from wisp_runtime.quantize.quantizing import Options, quantize, shipped_text
from wisp_runtime.quantize.work import Worker
from wisp_runtime.weights.files import Files

TEXT = shipped_text()[:300]
SHAPES = {
    "grouped heads, biases": {},
    "as many heads, no biases": {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 4},
    "norms of heads": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
}
GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "layer_types": ["attention", "mamba"],
    "num_local_experts": 0,
    "shared_intermediate_size": 96,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "embedding_multiplier": 3,
    "residual_multiplier": 0.5,
}
FALCON = {
    "architectures": ["FalconH1ForCausalLM"],
    "mamba_d_ssm": 64,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "embedding_multiplier": 3.0,
    "attention_out_multiplier": 0.8,
    "ssm_out_multiplier": 0.6,
    "mlp_multipliers": [0.8, 0.5],
}
NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"],
    "hybrid_override_pattern": "M-*-",
    "num_hidden_layers": 4,
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 16,
}
HYBRIDS = {  # and the tensors that are smoothed
    "granite": (GRANITE, {"q", "k", "v", "o"}),
    "falcon": (FALCON, {"gate", "up", "down"}),
    "nemotron": (NEMOTRON, {"q", "k", "v", "o"}),
}


def uneven(folder, **config):
    """Write a model of which some channels are far larger than others, as trained models have them."""
    write_checkpoint(folder, np.float32, **config)
    tensors, random = load_file(folder / "model.safetensors"), np.random.default_rng(9)
    for name, values in tensors.items():
        if "layernorm" in name:
            values *= np.exp(random.standard_normal(values.shape)).astype(np.float32)
        if "up_proj.weight" in name or "v_proj.weight" in name:
            values *= np.exp(random.standard_normal((len(values), 1))).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def logits(folder, text=TEXT[:64]):
    ops = CpuOps(threads=1)
    model = load_model(folder, read_spec(folder), ops)
    tokens = read_tokens(folder, text, model.spec.vocab)
    cache = allocate_blocks(model.spec, ops, blocks=4, block_tokens=16)
    return model.forward(sequence_batch(tokens, 0, 64, range(len(tokens))), cache).logits


@pytest.mark.parametrize("shape", SHAPES)
def test_scales_between_layers_change_no_result(tmp_path, shape):
    folder = uneven(tmp_path / "source", **SHAPES[shape])
    before = logits(folder)
    factors = smooth(folder, tmp_path)
    assert factors["model.layers.1.mlp.down_proj.weight"].inputs.std() > 0.1
    assert factors["model.layers.0.self_attn.o_proj.weight"].inputs.std() > 0
    np.testing.assert_allclose(logits(folder), before, rtol=0, atol=2e-5 * np.abs(before).max())


@pytest.mark.parametrize("hybrid", HYBRIDS)
def test_scales_of_hybrids_are_of_the_parts_that_have_one_input(tmp_path, hybrid):
    config, parts = HYBRIDS[hybrid]
    folder = uneven(tmp_path / "source", **config)
    before = logits(folder)
    factors = smooth(folder, tmp_path)
    smoothed = {name.split(".")[-2] for name, factor in factors.items() if factor.inputs is not None}
    assert smoothed == {f"{part}_proj" for part in parts}
    np.testing.assert_allclose(logits(folder), before, rtol=0, atol=2e-5 * np.abs(before).max())


def smooth(folder, state):
    """Scale the tensors of a checkpoint as before they are rounded; return the factors by tensor."""
    checkpoint = open_checkpoint(folder, read_spec(folder))
    plan, tensors = plan_checkpoint(checkpoint.spec, checkpoint.tensors.by_name, TARGETS["int4"]), {}
    with Files(folder, checkpoint.tensors.files) as files:
        worker = Worker(files, TARGETS["int4"], 1)
        runner = LayerRunner(checkpoint, files, CpuOps(threads=1))
        items = {item.source.name: item for item in plan.quantized}
        found = Calibration(runner, worker, items, checkpoint.tensors.by_name)
        tokens = read_tokens(folder, TEXT, checkpoint.spec.vocab)
        worker.factors = found.run(checkpoint.spec, tokens, state, lambda *_: None)
        for tensor in checkpoint.tensors:
            tensors[tensor.name] = worker.read_rows(tensor, 0, tensor.shape[0])
    save_file(tensors, folder / "model.safetensors")
    return worker.factors


def test_layers_run_alone_give_the_stream_of_the_model(tmp_path):
    folder = uneven(tmp_path / "source")
    checkpoint, ops = open_checkpoint(folder, read_spec(folder)), CpuOps(threads=1)
    tokens = read_tokens(folder, TEXT[:64], checkpoint.spec.vocab)
    seen = {}
    model = load_model(folder, checkpoint.spec, ops)
    cache = allocate_blocks(checkpoint.spec, ops, blocks=4, block_tokens=16)
    model.forward(
        sequence_batch(tokens, 0, 64, [0]), cache, lambda layer, stream: seen.update({layer: stream})
    )
    with Files(folder, checkpoint.tensors.files) as files:
        runner = LayerRunner(checkpoint, files, ops)
        stream = runner.embed(tokens)
        for index in range(2):
            np.testing.assert_allclose(stream, seen[index], atol=1e-5)
            stream, inputs = runner.run(index, stream)
        np.testing.assert_allclose(stream, seen[2], atol=1e-4)
    assert {name: values.shape for name, values in inputs.items()} == {
        "layers.0.qkv.weight": (64, 64),
        "layers.0.output.weight": (64, 64),
        "layers.0.gate_up.weight": (64, 64),
        "layers.0.down.weight": (64, 96),
    }


@pytest.mark.parametrize("to", ["int4", "nvfp4"])
def test_less_is_lost_than_by_rounding_alone(tmp_path, to):
    source = uneven(tmp_path / "source")
    before, errors = logits(source), {}
    for method in ("rtn", "awq"):
        quantize(source, tmp_path / method, Options(to, method, TEXT))
        errors[method] = np.linalg.norm(logits(tmp_path / method) - before)
    assert errors["awq"] < 0.8 * errors["rtn"]


def torn_factors(state):
    file = state / "layer-0000.npz"
    file.write_bytes(file.read_bytes()[:-100])


def empty_factors(state):
    (state / "layer-0000.npz").write_bytes(b"")


def torn_stream(state):
    file = state / "stream-0001.npz"
    file.write_bytes(file.read_bytes()[:40] + bytes(file.stat().st_size - 40))


def no_stream(state):
    (state / "stream-0001.npz").unlink()


@pytest.mark.parametrize(
    ("spoil", "reported"),
    [
        (lambda _: None, [(1, 2), (2, 2)]),
        (torn_factors, [(0, 2), (1, 2), (2, 2)]),  # the power failed: it begins again
        (empty_factors, [(0, 2), (1, 2), (2, 2)]),
        (torn_stream, [(0, 2), (1, 2), (2, 2)]),
        (no_stream, [(0, 2), (1, 2), (2, 2)]),
    ],
)
def test_a_calibration_goes_on_after_the_last_layer_that_was_done(tmp_path, monkeypatch, spoil, reported):
    source, options = uneven(tmp_path / "source"), Options("int4", "awq", TEXT)
    quantize(source, tmp_path / "at once", options)
    searched, search = [], calibrating.search

    def interrupted(*arguments):
        if len(searched) == 5:  # in the second layer, of four searches each
            raise KeyboardInterrupt
        searched.append(arguments)
        return search(*arguments)

    monkeypatch.setattr(calibrating, "search", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quantize(source, tmp_path / "resumed", options)
    monkeypatch.setattr(calibrating, "search", search)
    spoil(tmp_path / "resumed/.wisp-quantize")
    layers = []
    quantize(source, tmp_path / "resumed", options, on_layer=lambda done, total: layers.append((done, total)))
    assert layers == reported
    hashes = [
        hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()
        for name in ("at once", "resumed")
    ]
    assert hashes[0] == hashes[1]


def test_four_bits_are_calibrated_unless_said_otherwise(tmp_path):
    assert [Options(to).uses_activations for to in ("fp8", "int8", "int4", "nvfp4")] == [
        False,
        False,
        True,
        True,
    ]
    assert not Options("int4", "rtn").uses_activations


def test_without_a_tokenizer_the_way_without_calibration_is_named(tmp_path):
    write_checkpoint(tmp_path / "source")
    (tmp_path / "source/tokenizer.json").unlink()
    with pytest.raises(TokenizerUnreadable, match="--method rtn"):
        quantize(tmp_path / "source", tmp_path / "made", Options("int4"))
    quantize(tmp_path / "source", tmp_path / "made", Options("int4", "rtn"))


def test_tokens_beyond_the_vocabulary_and_empty_texts_are_refused(tmp_path):
    write_checkpoint(tmp_path / "source")
    with pytest.raises(TokenizerUnreadable, match=r"token .* but the model has 5"):
        read_tokens(tmp_path / "source", TEXT, 5)
    with pytest.raises(ConfigError, match="the text has 1 tokens"):
        read_tokens(tmp_path / "source", "a", 70)
    assert json.loads((tmp_path / "source/config.json").read_text()) == CONFIG
