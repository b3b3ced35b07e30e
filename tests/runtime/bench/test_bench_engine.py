"""Benchmark commands on the CPU, at the toy shape."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from wisp_plan.presets import shape_spec
from wisp_runtime.bench.checkpoint import is_written, write_checkpoint
from wisp_runtime.bench.profile import profiling
from wisp_runtime.bench.record import Row
from wisp_runtime.bench.serving.start import row_maker
from wisp_runtime.bench.steps import decode_row
from wisp_runtime.bench.target import Target, TargetOptions, open_target
from wisp_runtime.cli.bench import command as bench
from wisp_runtime.cli.bench_options import report
from wisp_runtime.cli.profile import command as profile
from wisp_runtime.engine.persistent.strategy import DecodeStrategy
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.ops.registry import open_device
from wisp_runtime.server.text.tokenizer import load_tokenizer

TOY = ["--shape", "toy", "--device", "cpu", "--threads", "1"]


def run(command, *arguments, code=0):
    result = CliRunner().invoke(command, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def rows_of(path: Path):
    return json.loads(path.read_text())["rows"]


def test_decode_measures_every_batch_at_every_context(tmp_path):
    out = tmp_path / "decode.json"
    text = run(bench, "decode", *TOY, "--batch", "1,3", "--context", "40,90", "--steps", 4, "--json", out)
    rows = rows_of(out)
    assert [(row["batch"], row["context"]) for row in rows] == [(1, 40), (3, 40), (1, 90), (3, 90)]
    assert {row["path"] for row in rows} == {"reference"}
    assert all(row["p10"] <= row["value"] <= row["p90"] and row["steps"] == 4 for row in rows)
    assert text.count("decode_step_ms") == 4


def test_decode_can_sample_instead_of_taking_the_best(tmp_path):
    run(
        bench,
        "decode",
        *TOY,
        "--batch",
        2,
        "--context",
        20,
        "--steps",
        2,
        "--temperature",
        0.8,
        "--top-p",
        0.9,
    )


def test_prefill_counts_tokens_of_prompts(tmp_path):
    out = tmp_path / "prefill.json"
    run(bench, "prefill", *TOY, "--batch", 2, "--prompt", 30, "--repeats", 1, "--json", out)
    (row,) = rows_of(out)
    assert (row["metric"], row["batch"], row["context"]) == ("prefill_tokens_per_s", 2, 30)


@pytest.mark.parametrize(("flags", "cached"), [([], None), (["--cached"], 32)])
def test_a_first_token_comes_with_and_without_a_cached_prefix(tmp_path, flags, cached):
    out = tmp_path / "first.json"
    run(bench, "first-token", *TOY, "--prompt", 60, "--repeats", 2, "--json", out, *flags)
    (row,) = rows_of(out)
    assert row["metric"] == "first_token_ms"
    assert row.get("cached") == cached


def test_measured_memory_is_compared_with_its_prediction(tmp_path):
    out = tmp_path / "memory.json"
    run(bench, "memory", *TOY, "--batch", 2, "--context", 64, "--json", out)
    predicted, measured = rows_of(out)
    assert (predicted["metric"], measured["metric"]) == ("memory_predicted_bytes", "memory_measured_bytes")
    assert predicted["value"] > 0
    assert "off_percent" in measured


def test_start_up_is_timed_to_the_first_token_phase_by_phase(tmp_path):
    out = tmp_path / "start.json"
    run(bench, "startup", *TOY, "--repeats", 1, "--json", out, "--flag=--max-context=64")
    total, *phases = rows_of(out)
    assert total["metric"] == "start_to_first_token_s"
    assert 0 < total["ready_s"] < total["value"] == pytest.approx(total["runs_s"][0], abs=1e-3)
    assert {"import", "weights", "firstToken"} <= {row["phase"] for row in phases}


@pytest.mark.parametrize(
    ("device", "state", "batch", "path"),
    [
        (
            "cuda",
            {"kernels": {"decodePath": "persistent", "upTo": 32, "upToTokens": 50000}},
            32,
            "persistent",
        ),
        ("cuda", {"kernels": {"decodePath": "persistent", "upTo": 32, "upToTokens": 50000}}, 33, "general"),
        ("cuda", {"kernels": {"decodePath": "general", "why": "the model is small"}}, 1, "general"),
        ("cuda", None, 1, "general"),
        ("cpu", {"kernels": None}, 1, "reference"),
    ],
)
def test_rows_of_a_server_have_the_path_of_its_state(device, state, batch, path):
    assert row_maker("toy", device, state)("served_gap_ms", 1.0, batch=batch).path == path


def test_clients_stream_concurrently_from_a_server_process(tmp_path):
    out, folder = tmp_path / "serving.json", tmp_path / "toy"
    load = ["--clients", "1,3", "--prompt", 20, "--tokens", 30]
    run(bench, "serving", *TOY, *load, "--checkpoint", folder, "--json", out)
    rows = {(row["metric"], row["batch"]): row for row in rows_of(out)}
    metrics = ("served_gap_ms", "served_first_token_ms", "served_tokens_per_s")
    assert set(rows) == {(metric, count) for metric in metrics for count in (1, 3)}
    assert rows["served_gap_ms", 3]["p99"] >= rows["served_gap_ms", 3]["value"] > 0
    assert is_written("toy", folder)  # kept, because a folder was named
    assert not is_written("toy", tmp_path)


def test_an_invalid_or_unreachable_url_is_refused():
    text = run(bench, "serving", *TOY, "--url", "127.0.0.1", code=2)
    assert "HOST:PORT/MODEL" in text
    assert "EngineDied" in run(bench, "serving", *TOY, "--url", "127.0.0.1:9/x", code=1)


def test_a_server_that_does_not_start_is_reported_with_its_log(tmp_path):
    text = run(bench, "startup", *TOY, "--repeats", 1, "--flag=--max-context=999999", code=1)
    assert "EngineDied" in text
    assert "can hold 1 to 1024 tokens" in text


def test_profile_breaks_down_a_decode_step(tmp_path):
    svg, out = tmp_path / "step.svg", tmp_path / "profile.json"
    text = run(profile, *TOY, "--batch", 2, "--context", 40, "--steps", 2, "--svg", svg, "--json", out)
    for phase in ("embedding", "qkv", "attention", "gate/up", "down", "head", "sampling", "as served"):
        assert phase in text
    assert svg.read_text().startswith("<svg")
    launches = {(row["phase"], row["kernel"]): row["launches"] for row in rows_of(out) if "launches" in row}
    assert (
        launches["qkv", "project_qkv"]
        == launches["attention", "paged_attention"]
        == len(shape_spec("toy").layers)
    )


def test_a_profile_has_the_formats_that_it_is_asked_for(tmp_path, monkeypatch):
    asked, profiled = [], profiling.profile_step

    def profile_step(options, step):
        asked.append(options)
        return profiled(options, step)

    monkeypatch.setattr(profiling, "profile_step", profile_step)
    formats = "--quantization", "fp8_block", "--kv-cache-dtype", "fp8"
    out = tmp_path / "profile.json"
    run(profile, *TOY, *formats, "--context", 40, "--steps", 1, "--json", out)
    assert {row["kv"] for row in rows_of(out)} == {"fp8"}
    assert [options.quantization for options in asked] == ["fp8_block"]
    said = run(profile, *TOY, "--head-quantization", "fp8", code=2)
    assert "headQuantization (--head-quantization) is fp8" in said, "a CPU has no kernels for that"


def test_the_reason_of_the_general_path_is_shown_once_and_kept_in_each_row(capsys, tmp_path):
    why = "the model is small"
    rows = [
        Row("decode_step_ms", 1.0, "general", "toy", "bf16", "bf16", batch=batch, more={"why": why})
        for batch in (1, 8)
    ]
    options = {"name": "x", "json_path": tmp_path / "x.json", "device": "cpu", "commit": "c"}
    report("decode", options, lambda: iter(rows))
    shown = capsys.readouterr()
    assert shown.out.count("decode_step_ms") == 2
    assert shown.err == f"general path: {why}\n"
    assert [row["why"] for row in rows_of(tmp_path / "x.json")] == [why, why]


def test_a_row_of_the_general_path_says_why(monkeypatch):
    target = open_target(TargetOptions("toy", "cpu", batch=2, context=120, threads=1))
    target = replace(target, strategy=DecodeStrategy("persistent", up_to=1, up_to_tokens=1 << 20))
    monkeypatch.setattr(Target, "gpu", None)
    alone, both = (
        decode_row(target, batch=batch, context=20, steps=2, sampling={"temperature": 0.0})
        for batch in (1, 2)
    )
    assert (alone.path, alone.more.get("why")) == ("persistent", None)
    assert (both.path, both.more["why"]) == ("general", "the persistent kernel is used up to 1 sequences")


def test_profile_breaks_down_a_prefill_step():
    assert "prefill, 2 × 30 tokens" in run(profile, *TOY, "--batch", 2, "--prompt", 30, "--steps", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decode", "--shape", "lama-3-8b"], "did you mean 'llama-3-8b'"),
        (["decode", *TOY, "--batch", "1,x"], "whole numbers"),
        (["decode", *TOY, "--batch", "0"], "whole numbers"),
        (["decode", *TOY, "--against", "torch"], "Name a Python that has torch"),
    ],
)
def test_misuse_is_a_sentence(arguments, message):
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_on_a_machine_without_a_gpu_cuda_is_refused_in_a_sentence():
    result = CliRunner().invoke(bench, ["decode", "--shape", "toy"])
    assert result.exit_code in (1, 2)
    assert "Traceback" not in result.output


def test_the_torch_baseline_runs_without_wisp():
    from wisp_runtime.bench.baselines import torch_baseline

    command = [sys.executable, "-I", torch_baseline.__file__, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--modes" in done.stdout


def test_a_written_checkpoint_is_a_model_and_its_tokenizer(tmp_path):
    progress = []
    size = write_checkpoint("toy", tmp_path, lambda done, total: progress.append((done, total)))
    assert progress[-1] == (size, size)
    spec = read_spec(tmp_path)
    assert spec == shape_spec("toy")
    load_model(tmp_path, spec, open_device("cpu", threads=1).ops)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.tokenizer.get_vocab_size() == spec.vocab
    assert tokenizer.decode(tokenizer.encode("no such word", adds_special=False)) == "no such word"
    assert all(tokenizer.token_bytes(token) for token in range(spec.vocab))


def test_the_cache_of_a_target_is_full_of_numbers():
    target = open_target(TargetOptions("toy", "cpu", batch=2, context=64, threads=1))
    values = target.runner.forward_pass.cache.values
    assert np.count_nonzero(values) == values.size
    assert values.std() == pytest.approx(1, abs=0.05)
