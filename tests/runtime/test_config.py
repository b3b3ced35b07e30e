"""Every flag, its variable, its values and its refusals."""

import hashlib
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from wisp_runtime.cli import serve as serve_command
from wisp_runtime.config import ServeConfig, check_environment, options
from wisp_runtime.errors import ConfigError
from wisp_runtime.setting_fields import flag_of, variable_of


@pytest.fixture
def parsed(monkeypatch):
    """Run ``serve`` up to the point where serving would begin; return (exit code, config, output)."""
    taken = []
    monkeypatch.setattr("wisp_runtime.server.process.run", lambda config: taken.append(config) or 0)

    def run(*arguments, **environment):
        result = CliRunner().invoke(serve_command.command, [*arguments], env=environment)
        return result.exit_code, taken[-1] if taken else None, result.output

    return run


# Flag, what is written, what is read. One row for each field at least: checked below.
VALUES = [
    ("--served-name", "my-model", "my-model"),
    ("--alias", "chat", "chat"),
    ("--revision", "main", "main"),
    ("--host", "::1", "::1"),
    ("--port", "0", 0),
    ("--port", "65535", 65535),
    ("--device", "cuda", "cuda"),
    ("--max-context", "auto", None),
    ("--max-context", "4096", 4096),
    ("--max-concurrent", "1", 1),
    ("--quantization", "nvfp4", "nvfp4"),
    ("--head-quantization", "fp8", "fp8"),
    ("--kv-cache-dtype", "fp8", "fp8"),
    ("--kv-cache-bf16-layers", "2", 2),
    ("--decode-path", "general", "general"),
    ("--deterministic", "true", True),
    ("--generation-config", "none", "none"),
    ("--tool-parser", "qwen3_coder", "qwen3_coder"),
    ("--reasoning-parser", "think", "think"),
    ("--prefix-cache", "false", False),
    ("--block-tokens", "32", 32),
    ("--max-step-tokens", "auto", None),
    ("--max-step-tokens", "2048", 2048),
    ("--max-waiting", "64", 64),
    ("--max-queue-wait", "none", None),
    ("--max-queue-wait", "1m30s", 90.0),
    ("--target-first-token", "1.5s", 1.5),
    ("--target-per-token", "none", None),
    ("--target-per-token", "20ms", 0.02),
    ("--kv-cache-memory", "auto", None),
    ("--kv-cache-memory", "512MiB", 512 << 20),
    ("--kv-cache-memory", "1.5Gi", 3 << 29),
    ("--memory-fraction", "1", 1.0),
    ("--drain-timeout-s", "0", 0.0),
    ("--threads", "2", 2),
    ("--threads", "auto", None),
    ("--cache-dir", "/tmp/c", Path("/tmp/c")),
    ("--termination-log", "/dev/termination-log", Path("/dev/termination-log")),
    ("--api-key", "a, b", tuple(hashlib.sha256(key).hexdigest() for key in (b"a", b"b"))),
    ("--pod-token-sha256", f"{'ab' * 32},{'CD' * 32}", ("ab" * 32, "cd" * 32)),
    ("--log-level", "debug", "debug"),
    ("--log-format", "json", "json"),
    ("--otlp-endpoint", "http://c:4318", "http://c:4318"),
]


def test_the_table_has_every_flag():
    assert {flag for flag, _, _ in VALUES} == {flag_of(option.name) for option in options()}


@pytest.mark.parametrize(("flag", "written", "read"), VALUES)
def test_a_flag_and_its_variable_are_read_alike(parsed, flag, written, read):
    name = flag.removeprefix("--").replace("-", "_")
    bare = {"prefix_cache": "--no-prefix-cache", "deterministic": flag}
    from_flag = [bare[name]] if name in bare else [flag, written]
    for status, config, output in (parsed("m", *from_flag), parsed("m", **{variable_of(name): written})):
        assert status == 0, output
        assert getattr(config, name) == read


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["--port", "65536"], {}, "from 0 to 65535"),
        (["--port", "http"], {}, "whole number"),
        ([], {"WISP_PORT": "tcp://10.0.0.1:80"}, "enableServiceLinks"),  # a Service named wisp does this
        (["--max-context", "0"], {}, "at least 2"),
        (["--max-context", "4k"], {}, "whole number"),
        (["--quantization", "int5"], {}, "did you mean 'int8'"),
        (["--kv-cache-memory", "lots"], {}, "512MiB"),
        (["--kv-cache-memory", "0"], {}, "no memory"),
        (["--max-waiting", "0"], {}, "from 1 to"),
        (["--target-per-token", "20"], {}, "not a duration above 0, such as 20ms"),
        (["--target-per-token", "0s"], {}, "above 0"),
        (["--target-first-token", "soon"], {}, "20ms"),
        (["--memory-fraction", "0"], {}, "above 0"),
        (["--memory-fraction", "1.01"], {}, "at most 1"),
        (["--memory-fraction", "nan"], {}, "number"),
        (["--drain-timeout-s", "-1"], {}, "at least 0"),
        (["--drain-timeout-s", "inf"], {}, "number"),
        (["--served-name", " "], {}, "empty"),
        (["--api-key", "a,"], {}, "an API key is empty"),
        (["--pod-token-sha256", "ab"], {}, "64 hexadecimal digits"),
        ([], {"WISP_POD_TOKEN_SHA256": ","}, "64 hexadecimal digits"),
        (
            ["--max-step-tokens", "512", "--max-concurrent", "600"],
            {},
            "--max-step-tokens 512 is less than --max-concurrent 600",
        ),
        (["--deterministic", "--device", "cpu"], {}, "--device cpu: its GEMMs are not batch-invariant"),
        (["--deterministic", "--decode-path", "general"], {}, "Use --decode-path auto"),
        (["--deterministic", "--decode-path", "persistent"], {}, "Use --decode-path auto"),
        (["--deterministic", "--kv-cache-dtype", "fp8"], {}, "Use --kv-cache-dtype auto"),
        (["--deterministic"], {"WISP_DECODE_PATH": "general"}, "Use --decode-path auto"),
        (
            ["--deterministic", "--max-concurrent", "65"],
            {},
            "--max-concurrent 65: its decode steps have at most 64 sequences. Lower it to that",
        ),
        (
            ["--deterministic", "--block-tokens", "24"],
            {},
            "--block-tokens 24: its decode steps require a multiple of 16",
        ),
        (["--max-contxt", "5"], {}, "--max-context"),
        ([], {"WISP_MAX_CONTXT": "5"}, "WISP_MAX_CONTEXT"),
        ([], {"WISP_MODEL": "x"}, "no setting of wisp-runtime"),
        (["extra"], {}, "unexpected extra argument"),
    ],
)
def test_invalid_settings_are_misuse_with_a_remedy(parsed, arguments, environment, says):
    status, config, output = parsed("m", *arguments, **environment)
    assert (status, config) == (2, None)
    assert says in re.sub(r"\s+", " ", output)


def test_the_width_of_a_step_that_is_left_open_never_contradicts_the_sequences(parsed):
    status, config, output = parsed("m", "--max-concurrent", "600")
    assert status == 0, output
    assert (config.max_concurrent, config.max_step_tokens) == (600, None)


def test_deterministic_mode_takes_as_many_sequences_as_the_persistent_kernel(parsed):
    status, config, output = parsed("m", "--deterministic", "--max-concurrent", "64", "--block-tokens", "32")
    assert status == 0, output
    assert (config.deterministic, config.max_concurrent, config.device) == (True, 64, "auto")


@pytest.mark.parametrize("key", ["WISP_GATEWAY_PORT", "WISP_OPERATOR_X", "WISPY", "PATH", "WISP_PORT"])
def test_other_programs_variables_are_left_alone(key):
    check_environment({key: "1"})


def test_a_stray_variable_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"WISP_THREAD is no setting .*'WISP_THREADS'"):
        check_environment({"WISP_THREAD": "1"})


@pytest.mark.parametrize(
    ("model", "served_name", "name"),
    [
        ("/models/smollm2", None, "smollm2"),
        ("/models/smollm2/", None, "smollm2"),
        ("file:///models/smollm2", None, "smollm2"),
        ("hf://HuggingFaceTB/SmolLM2-135M", None, "SmolLM2-135M"),
        ("hf://HuggingFaceTB/SmolLM2-135M@main", None, "SmolLM2-135M"),
        ("models/a@b", None, "a@b"),
        ("/models/SmolLM2.Q4_K_M.gguf", None, "SmolLM2.Q4_K_M"),
        ("/models/x", "y", "y"),
    ],
)
def test_the_served_name_is_the_models_last_part(model, served_name, name):
    assert ServeConfig(model=model, served_name=served_name).name == name


def test_a_folder_named_by_dots_has_its_real_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ServeConfig(model=".").name == tmp_path.name
