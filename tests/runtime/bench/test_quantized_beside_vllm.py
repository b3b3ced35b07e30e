"""Checkpoints that both engines load, and the reading of another engine's tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wisp_plan.hardware.kernel_formats import kernel_formats
from wisp_plan.weights.held import held_name
from wisp_runtime.models.load import load_model, open_checkpoint, read_spec
from wisp_runtime.ops.cpu.ops import CpuOps

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH / "peer"))
    monkeypatch.syspath_prepend(str(BENCH / "quality"))


@pytest.mark.parametrize("form", ["mxfp4", "fp8_block"])
def test_random_codes_are_held_as_stored_and_have_the_variance_of_weights(tmp_path, form):
    import random_weights

    folder = tmp_path / form
    random_weights.write("toy", form, folder, pool_bytes=1 << 16)
    spec = read_spec(folder)
    held = open_checkpoint(folder, spec).held("auto", kernel_formats("hopper"))
    assert held_name(held.weights) == form
    model = load_model(folder, spec, CpuOps(threads=1))
    (name, *_) = (weight.name for weight in held.weights if weight.role == "projection")
    values = model.weights[name]
    deviation = float(values.tiles.std()) * values.inputs**0.5
    assert 0.7 < deviation < 1.5  # MXFP4's scales are powers of two


def test_places_after_the_prompt_get_the_lead_of_the_other_engines_token():
    import beside_others

    prompt = list(range(beside_others.PROMPT_TOKENS))
    likely = [{token: -0.5} for token in prompt] + [{7: -1.0, 9: -1.5}, {7: -2.0, 9: -0.25}]
    assert beside_others.leads(likely, [*prompt, 9, 9]) == [(7, 0.5), (9, 0.0)]


def test_a_lead_above_the_noise_fails(tmp_path, capsys):
    import beside_others

    scored = [[[7, 0.0], [9, 0.2]], [[7, 0.3]]]
    (tmp_path / "int4.vllm.json").write_text(json.dumps({"engine": "vllm", "scored": scored}))
    (tmp_path / "int4.ours.json").write_text("{}")
    assert beside_others.compare(tmp_path, 0.4) == 0
    assert beside_others.compare(tmp_path, 0.25) == 1
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (row["places"], row["same"], row["worst_nats"], row["engine"]) == (3, 1, 0.3, "vllm")
