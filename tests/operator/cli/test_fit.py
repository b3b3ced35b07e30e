"""``wisp fit`` and the command itself: exit codes, JSON, help that answers at once."""

import json
import re
import socket
import subprocess
import sys
import urllib.error
from pathlib import Path

import pytest
from click.testing import CliRunner
from gguf import GGMLQuantizationType
from hollow_checkpoint import LLAMA_8B, write_model
from tiny_gguf import write_gguf

from wisp_operator.cli.main import SUMMARIES, main
from wisp_plan.hardware import kernel_layers
from wisp_plan.presets import shape_config


def wisp(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path):
    """An 8-billion-parameter model whose weights are a hole in a file: only its header is ever read."""
    path = tmp_path / "Llama_8B"
    path.mkdir()
    return write_model(path, LLAMA_8B)


def manifest(folder, **spec):
    body = {"model": {"uri": f"file://{folder}"}, **spec}
    return {
        "apiVersion": "wisp.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": "eight"},
        "spec": body,
    }


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--gpu", "h100"], 0, "✓ fits"),
        (["--gpu", "l4"], 0, "✓ fits"),
        (["--gpu", "l4", "--max-context", "131072"], 1, ", or maxContext "),
        (["--gpu", "t4"], 1, "✗ does not fit"),
        (["--gpu", "t4"], 1, "refuses the T4: there are no kernels for compute capability 7.5"),
        (["--gpu", "t4", "--quantization", "int4"], 2, "no format can be served on it. Choose another card"),
        (["--gpu", "t4"], 1, "7.5, which has no bf16 (activations are bf16, whatever the weights are)."),
        (["--gpu", "b200"], 1, "refuses the B200: there are no kernels for compute capability 10.0. "),
        (["--gpu", "l4"], 0, "No model has run on the L4 yet"),
        (["--gpu", "h100"], 0, "No model has run on the H100 yet: its kernels are the same as on an H200."),
        (["--gpu", "l44"], 2, "Did you mean L4"),
        (["--gpu", "l4", "--gpu", "h100"], 2, "one card at a time"),
        (["--gpu", "l4,h100"], 2, "one card at a time"),
        (["--gpu", ""], 2, "it is empty"),
        (["--gpu", "l4", "--max-context", "200000"], 2, "131072"),
    ],
)
def test_the_exit_code_is_the_verdict(folder, arguments, code, said):
    done = wisp("fit", folder, *arguments)
    assert (done.exit_code, said in done.output) == (code, True), done.output


def test_the_ledger_names_every_row_and_the_model_by_its_folder(folder):
    lines = wisp("fit", folder, "--gpu", "h100").output.splitlines()
    assert lines[0] == "llama-8b on H100"
    assert [line.split()[0] for line in lines[2:9]] == [
        *("weights", "KV", "workspace", "graphs", "CUDA", "total", "available"),
    ]
    assert "15.0 GiB" in lines[2]


def test_a_manifest_is_checked_against_the_gpu_it_names_and_a_flag_outranks_it(folder, tmp_path):
    file = tmp_path / "model.yaml"
    file.write_text(json.dumps(manifest(folder, gpu={"product": ["Tesla-T4"]})))
    assert wisp("fit", file).exit_code == 1
    assert wisp("fit", file, "--gpu", "h100").output.startswith("eight on H100")


def test_a_gguf_file_is_checked_as_a_model_and_its_types_are_named(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", kind=GGMLQuantizationType.Q8_0)
    done = wisp("fit", tmp_path / "tiny.gguf", "--gpu", "h100")
    assert done.exit_code == 0, done.output
    assert "bf16, dequantized from Q8_0 (8.5 bits)" in done.output
    (answer,) = json.loads(wisp("fit", tmp_path / "tiny.gguf", "--device", "cpu", "--json").output)
    assert answer["model"] == "default/tiny"
    assert answer["weights"] == "float32, dequantized from Q8_0 (8.5 bits)"


def test_json_carries_the_complete_ledger(folder):
    (answer,) = json.loads(wisp("fit", folder, "--gpu", "t4", "--json").output)
    assert (answer["fits"], answer["device"], answer["support"]) == (False, "T4", "refused")
    assert answer["requiredBytes"] > answer["availableBytes"]
    assert sum(row["bytes"] for row in answer["rows"]) == answer["totalBytes"]
    assert answer["remedies"]


def test_several_models_fit_only_if_each_does(folder, tmp_path):
    file = tmp_path / "models.yaml"
    small = manifest(folder, gpu={"product": ["NVIDIA-H100-80GB-HBM3"]})
    large = {**manifest(folder, gpu={"product": ["Tesla-T4"]}), "metadata": {"name": "other"}}
    file.write_text(f"{json.dumps(small)}\n---\n{json.dumps(large)}")
    done = wisp("fit", file)
    assert done.exit_code == 1
    assert "eight on H100" in done.output
    assert "other on T4" in done.output
    assert "Each model is checked alone" in done.output


def test_several_files_and_folders_are_checked_in_their_order(folder, tmp_path):
    file = tmp_path / "model.yaml"
    file.write_text(json.dumps({**manifest(folder), "metadata": {"name": "mine"}}))
    done = wisp("fit", file, folder, "--gpu", "h100", "--json")
    assert done.exit_code == 0
    assert [answer["model"] for answer in json.loads(done.output)] == ["default/mine", "default/llama-8b"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("architectures", ["MarsForCausalLM"], "MarsForCausalLM"),
        ("hidden_act", "gelu_tanh", "hidden_act"),
        ("num_attention_heads", 0, "num_attention_heads"),
        (
            "head_dim",
            320,
            "for the sizes of this LlamaForCausalLM: heads of attention have 320 channels, over 256.",
        ),
    ],
)
def test_a_model_that_cannot_be_run_at_all_is_refused_as_one_that_does_not_fit(folder, key, value, said):
    (folder / "config.json").write_text(json.dumps({**LLAMA_8B, key: value}))
    done = wisp("fit", folder, "--gpu", "h100")
    assert (done.exit_code, said in done.stderr) == (1, True), done.output


def test_layers_without_kernels_are_refused_by_exit_code_one(folder, monkeypatch):
    monkeypatch.setitem(kernel_layers.WITHOUT_KERNELS, "layers of tomorrow", lambda _: True)
    done = wisp("fit", folder, "--gpu", "h100")
    assert (done.exit_code, "no GPU kernels for layers of tomorrow" in done.stderr) == (1, True)
    assert wisp("fit", folder, "--device", "cpu").exit_code in (0, 1)


def test_a_refused_model_beside_one_that_cannot_be_known_is_exit_code_two(folder, tmp_path):
    mars = tmp_path / "mars"
    mars.mkdir()
    (mars / "config.json").write_text(json.dumps({**LLAMA_8B, "architectures": ["MarsForCausalLM"]}))
    assert wisp("fit", folder, mars, "--gpu", "h100").exit_code == 1
    done = wisp("fit", mars, tmp_path / "nowhere", folder, "--gpu", "h100")
    assert (done.exit_code, "llama-8b on H100" in done.stdout) == (2, True)
    assert all(said in done.stderr for said in ("mars: ", "nowhere is not there"))


@pytest.mark.parametrize("bad", ["typo.yaml", "nowhere", "ftp://host/model"])
def test_a_target_that_cannot_be_read_hides_no_other(folder, tmp_path, monkeypatch, bad):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typo.yaml").write_text(json.dumps(manifest(tmp_path, gpu={"cuont": 0})))
    done = wisp("fit", bad, folder, "--gpu", "h100")
    assert (done.exit_code, "llama-8b on H100" in done.stdout) == (2, True), done.output
    assert f"wisp fit: {bad}" in done.stderr


@pytest.mark.parametrize(
    ("name", "expect"),
    [("7B-chat", "model-7b-chat"), ("--", "model"), ("x" * 39 + ".5", "x" * 39), ("Qwen3.5", "qwen3-5")],
)
def test_a_folder_of_any_name_is_checked_as_a_model_with_a_valid_one(folder, name, expect):
    renamed = folder.rename(folder.with_name(name))
    done = wisp("fit", renamed, "--gpu", "h100")
    assert done.output.startswith(f"{expect} on H100"), done.output


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_one_model_that_cannot_be_read_hides_no_other(folder, tmp_path, flags):
    file = tmp_path / "models.yaml"
    lost = {**manifest(tmp_path / "lost"), "metadata": {"name": "lost"}}
    last = {**manifest(folder), "metadata": {"name": "last"}}
    file.write_text("\n---\n".join(map(json.dumps, [manifest(folder), lost, last])))
    done = wisp("fit", file, "--gpu", "h100", *flags)
    assert done.exit_code == 2
    assert all(name in done.stdout for name in ("eight", "last"))
    assert "wisp fit: lost: " in done.stderr


def test_a_manifest_for_a_gpu_that_is_checked_for_a_cpu_says_so(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("wisp_operator.local.machine.hardware.cards", list)
    file, said = tmp_path / "model.yaml", "eight wants a GPU, and this machine has none"
    file.write_text(json.dumps(manifest(folder)))
    assert said in wisp("fit", file).output
    assert "wants a GPU" not in wisp("fit", file, "--device", "cpu").output + wisp("fit", folder).output


def test_a_cpu_manifest_is_checked_within_its_memory_limit(folder, tmp_path):
    file = tmp_path / "model.yaml"
    file.write_text(json.dumps(manifest(folder, gpu={"count": 0}, resources={"limits": {"memory": "1Gi"}})))
    done = wisp("fit", file)
    assert done.exit_code == 1
    assert "eight on CPU within spec.resources.limits.memory 1Gi" in done.output


def test_a_served_name_that_means_another_model_is_named(folder, tmp_path):
    file = tmp_path / "model.yaml"
    file.write_text(
        json.dumps(
            manifest(folder) | {"spec": {"model": {"uri": f"file://{folder}", "servedName": "acme/eight"}}}
        )
    )
    done = wisp("fit", file, "--gpu", "h100")
    assert (
        "A request for 'acme/eight' means the model of that namespace and name, and no other." in done.output
    )
    assert "reached as default/eight alone" in done.output


def test_memory_that_stays_free_is_named(folder):
    said = wisp("fit", folder, "--gpu", "h100").output
    assert re.search(r"available .* H100, less the 10% that stay free *\n", said), said


def test_the_card_that_has_run_models_has_no_caution(folder):
    assert "No model has run" not in wisp("fit", folder, "--gpu", "h200").output
    (answer,) = json.loads(wisp("fit", folder, "--gpu", "h200", "--json").output)
    assert answer["support"] == "runs"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_gpu_that_this_machine_has_not_is_refused_in_the_words_of_up(folder, monkeypatch, flags):
    monkeypatch.setattr("wisp_operator.local.machine.hardware.cards", list)
    done = wisp("fit", folder, "--device", "cuda", *flags)
    assert (done.exit_code, "fits" in done.stdout) == (2, False), done.output
    assert "wisp fit: --device cuda: nvidia-smi lists no GPU on this machine. Install" in done.stderr
    assert wisp("fit", folder, "--device", "cuda", "--gpu", "h100").exit_code == 0


def test_the_summary_names_windows_beside_the_cost_of_a_token(tmp_path):
    config = shape_config("gpt-oss-20b")
    del config["quantization_config"]
    write_model(tmp_path, config)
    arguments = ("--gpu", "h200", "--max-context", "131072", "--max-concurrent", "1")
    done = wisp("fit", tmp_path, *arguments)
    assert "at a time 1 sequence of 131072 tokens" in done.output, done.output
    assert "24.0 KiB of KV cache a token, 3.4 MiB of windows a sequence" in done.output
    (answer,) = json.loads(wisp("fit", tmp_path, *arguments, "--json").output)
    assert answer["kvBytesPerContextToken"] == 24 << 10
    assert answer["kvWindowBytesPerSequence"] == 9 * 16 * 24 << 10
    assert answer["kvBytesPerToken"] == 48 << 10


def test_the_need_names_the_sequences_that_it_has_room_for(folder):
    assert "in steps with room for 256 (--max-concurrent)" in wisp("fit", folder, "--gpu", "h200").output
    alone = wisp("fit", folder, "--gpu", "h200", "--max-concurrent", "1").output
    assert "needs: one sequence of 131072 tokens\n" in alone


def test_a_total_that_is_more_than_the_need_says_why(folder):
    said = "needs: one sequence of"
    assert said in wisp("fit", folder, "--gpu", "h100").output
    assert said not in wisp("fit", folder, "--gpu", "t4").output  # there the total is the need


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "nowhere",
            "nowhere is not there. TARGET is a manifest (a YAML file), a folder with a model, a GGUF",
        ),
        ("file:///no/where", "/no/where is not there"),
        ("model.gguf", "model.gguf is truncated or damaged"),
        ("typo.yaml", "wisp fit: typo.yaml:1: "),
        ("pvc://claim/model", "can only be read by a pod"),
        ("ftp://host/model", "spec.model.uri"),
        ("https://hub.test/org/model/tree/main", "is named by hf://org/model."),
        ("empty", "holds no config.json and no GGUF file"),
    ],
)
def test_what_cannot_be_known_is_exit_code_two(tmp_path, monkeypatch, target, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "typo.yaml").write_text(json.dumps(manifest(tmp_path, gpu={"cuont": 0})))
    done = subprocess.run([program(), "fit", target], capture_output=True, text=True, timeout=120)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_a_hub_whose_name_is_unknown_is_reported_as_being_offline(monkeypatch):
    def no_name(*_, **__):
        raise urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))

    monkeypatch.setattr("urllib.request.urlopen", no_name)
    done = wisp("fit", "hf://org/name")
    assert done.exit_code == 2
    assert (
        "its name could not be resolved. Is this machine offline? HF_ENDPOINT names a mirror." in done.output
    )
    assert "Errno" not in done.output


def program():
    return str(Path(sys.executable).with_name("wisp"))


@pytest.mark.parametrize("command", list(SUMMARIES))
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_has_help_with_an_example(command, flag):
    done = wisp(command, flag)
    assert done.exit_code == 0
    assert "Examples:" in done.output
    assert f"wisp {command}" in done.output


def test_help_imports_no_command_and_nothing_heavy():
    code = (
        "import sys; sys.argv = ['wisp', '--help']\n"
        "from wisp_operator.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'aiohttp', 'rich', 'yaml', 'kubernetes', 'kopf', 'asyncio', 'numpy'} & set(sys.modules)\n"
        "ours = {m for m in sys.modules if m.startswith(('wisp_operator.local', 'wisp_plan'))}\n"
        "sys.exit(f'imported: {heavy | ours}' if heavy | ours else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(summary.split(",")[0][:30] in done.stdout for summary in SUMMARIES.values())


def test_the_short_flag_for_help_works():
    assert wisp("-h").output == wisp("--help").output


@pytest.mark.parametrize(
    ("name", "says"),
    [("fitt", "no command 'fitt' (did you mean 'fit'?); there are up,"), ("serve", "'serve'; there are")],
)
def test_an_unknown_command_is_misuse_with_the_nearest_name(name, says):
    done = wisp(name)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_the_version_is_the_packages():
    assert wisp("--version").output == "wisp 0.1.0\n"
