"""The command line that the operator writes is one that the runtime reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from click import Context

from wisp_operator import api
from wisp_operator.api.types import Runtime
from wisp_operator.cli.commands.demo import example_arguments
from wisp_operator.core.fit.verdict import Device, plan
from wisp_operator.desired.deployment import deployment
from wisp_operator.desired.settings import BuildSettings
from wisp_plan.hardware.gpus import DEFAULT_FRACTION
from wisp_plan.presets import shape_spec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import GIB
from wisp_runtime.cli import example
from wisp_runtime.cli.main import main
from wisp_runtime.config import ServeConfig, options
from wisp_runtime.engine.startup import require_fit
from wisp_runtime.ops.protocol.device import Memory
from wisp_runtime.server.answers.reasoning import FORMATS as THINKING
from wisp_runtime.server.answers.tools.registry import FORMATS as TOOL_FORMATS
from wisp_runtime.setting_fields import flag_of

CONTRACTS = Path(__file__).parents[2] / "docs" / "contracts.md"

SPEC = shape_spec("llama-3-8b")
REASONING_FORMATS = {markers.name for markers in THINKING}


def model(uri: str = "hf://Qwen/Qwen3-0.6B", source: Mapping[str, Any] | None = None, **spec: Any):
    document = {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "metadata": {"name": "chat"},
        "spec": {"model": {"uri": uri, **(source or {})}, **spec},
    }
    return api.parse(document)


def read(arguments: list[str]) -> ServeConfig:
    """Read arguments with the runtime's own fields and parsers, refusing what it does not know."""
    by_flag = {flag_of(option.name): option for option in options()}
    program, target, *rest = arguments
    assert program == "serve"
    values: dict[str, Any] = {}
    words = iter(rest)
    for flag in words:
        option = by_flag[flag.replace("--no-", "--")]
        if option.metadata.get("is_flag"):
            values[option.name] = not flag.startswith("--no-")
        else:
            values[option.name] = option.metadata["parse"](next(words))
        assert list(values).count(option.name) == 1
    return ServeConfig(model=target, **values)


def served(found: api.InferenceModel) -> ServeConfig:
    container = deployment(found, 1, BuildSettings())["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["wisp-runtime"]
    return read(container["args"])


@pytest.mark.parametrize(
    ("found", "expect"),
    [
        (model(), {"model": "hf://Qwen/Qwen3-0.6B", "served_name": "chat", "device": "cuda", "port": 8000}),
        (model(source={"revision": "main"}), {"revision": "main"}),
        (model(source={"servedName": "Qwen/Qwen3"}), {"served_name": "Qwen/Qwen3", "alias": "chat"}),
        (model(source={"servedName": "Qwen/Qwen3"}), {"names": ("Qwen/Qwen3", "chat")}),
        (model(), {"names": ("chat",)}),
        (model("file:///srv/m"), {"model": "/models/chat"}),
        (model("pvc://models/qwen"), {"model": "/models/chat"}),
        (model("oci://ghcr.io/acme/q:1"), {"model": "/models/chat"}),
        (model("s3://bucket/q"), {"model": "s3://bucket/q", "cache_dir": Path("/cache/namespaces/default")}),
        (model("file:///srv/m"), {"cache_dir": Path("/cache")}),
        (model(gpu={"count": 0}), {"device": "cpu"}),
        (model(), {"max_context": None, "quantization": "auto", "kv_cache_dtype": "auto"}),
        (model(runtime={"maxContext": 4096}), {"max_context": 4096}),
        (model(runtime={"maxConcurrent": 8}), {"max_concurrent": 8, "max_step_tokens": None}),
        (model(), {"max_concurrent": None, "generation_config": "auto"}),
        (model(runtime={"maxConcurrent": "auto", "generationConfig": "none"}), {"generation_config": "none"}),
        (model(runtime={"toolParser": "hermes"}), {"tool_parser": "hermes", "reasoning_parser": "auto"}),
        (model(runtime={"reasoningParser": "none"}), {"tool_parser": "auto", "reasoning_parser": "none"}),
        # A step must hold a token of each sequence; auto sees to it.
        (model(runtime={"maxConcurrent": 1024}), {"max_concurrent": 1024, "max_step_tokens": None}),
        (model(runtime={"quantization": "fp8", "kvCacheDtype": "fp8"}), {"quantization": "fp8"}),
        (model(runtime={"headQuantization": "fp8"}), {"head_quantization": "fp8", "quantization": "auto"}),
        (
            model(runtime={"kvCacheDtype": "turbo4", "kvCacheBf16Layers": 2}),
            {"kv_cache_dtype": "turbo4", "kv_cache_bf16_layers": 2},
        ),
        (model(runtime={"decodePath": "general"}), {"decode_path": "general", "deterministic": False}),
        (model(runtime={"deterministic": True}), {"decode_path": "auto", "deterministic": True}),
        (model(runtime={"prefixCache": False}), {"prefix_cache": False}),
        (model(), {"prefix_cache": True, "termination_log": Path("/dev/termination-log")}),
        (model(), {"target_per_token": None, "max_waiting": 1024, "max_queue_wait": 600.0}),
        (model(scheduling={"targetFirstToken": "500ms"}), {"target_first_token": 0.5}),
        (model(scheduling={"targetPerToken": "20ms"}), {"target_per_token": 0.02}),
        (
            model(scheduling={"maxWaiting": 7, "maxQueueWait": "1m30s"}),
            {"max_waiting": 7, "max_queue_wait": 90.0},
        ),
        (model(rollout={"drainTimeout": "1m30s"}), {"drain_timeout_s": 90.0}),
        (model(rollout={"drainTimeout": "1500ms"}), {"drain_timeout_s": 1.5}),
        (model(rollout={"drainTimeout": "99999h"}), {"drain_timeout_s": 359_996_400.0}),
    ],
)
def test_the_runtime_reads_what_the_operator_wrote(found, expect):
    config = served(found)
    assert {name: getattr(config, name) for name in expect} == expect


def test_every_flag_the_operator_writes_is_on_the_contracts_page():
    documented = set(re.findall(r"--[a-z0-9-]+", CONTRACTS.read_text()))
    scheduling = {"targetFirstToken": "1s", "targetPerToken": "20ms", "maxWaiting": 9, "maxQueueWait": "9s"}
    source = {"revision": "main", "servedName": "Qwen/Qwen3"}
    runtime = {"deterministic": True, "toolParser": "hermes", "reasoningParser": "think"}
    everything = model(source=source, runtime=runtime, scheduling=scheduling)
    arguments = deployment(everything, 1, BuildSettings())["spec"]["template"]["spec"]
    written = {word for word in arguments["containers"][0]["args"] if word.startswith("--")}
    assert written <= documented


@pytest.mark.parametrize("quantization", ["auto", "bf16", "fp8", "int8", "int4", "nvfp4"])
def test_every_quantization_of_the_api_is_one_of_the_runtime(quantization):
    assert served(model(runtime={"quantization": quantization})).quantization == quantization


def test_every_parser_of_the_api_is_one_of_the_runtime():
    fields = get_type_hints(Runtime)
    for name, formats in (("tool_parser", TOOL_FORMATS), ("reasoning_parser", REASONING_FORMATS)):
        flag = next(option for option in options() if option.name == name)
        assert get_args(fields[name]) == tuple(flag.metadata["metavar"].split("|"))
        assert set(get_args(fields[name])) == {"auto", "none", *formats}


@pytest.mark.parametrize("path", ["auto", "general"])
def test_every_decode_path_of_the_api_is_one_of_the_runtime(path):
    assert served(model(runtime={"decodePath": path})).decode_path == path


def test_what_the_api_leaves_open_stays_with_the_runtime_s_defaults():
    config, defaults = served(model()), ServeConfig(model="")
    chosen = {"model", "served_name", "device", "cache_dir", "termination_log", "drain_timeout_s"}
    for option in options():
        if option.name not in chosen:
            assert getattr(config, option.name) == getattr(defaults, option.name), option.name


class Published:
    """A model's files as a hub tells of them."""

    def config(self) -> ModelSpec:
        return SPEC

    def tensors(self) -> None:
        return None


@pytest.mark.parametrize(
    ("kind", "max_concurrent", "memory_bytes", "step_tokens"),
    [
        ("cuda", 32, 40 * GIB, 8192),
        ("cuda", 700, 24 * GIB, 4096),
        ("cpu", 32, 80 * GIB, 512),
        ("cpu", 700, 80 * GIB, 700),
    ],
)
def test_both_sides_count_with_steps_of_the_same_width(kind, max_concurrent, memory_bytes, step_tokens):
    wish = model(gpu={"count": int(kind == "cuda")}, runtime={"maxConcurrent": max_concurrent})
    planned = plan(wish, Published(), Device(kind, "L4", int(memory_bytes * DEFAULT_FRACTION)))
    memory = Memory(kind, "L4", memory_bytes, memory_bytes, None, None)
    started = require_fit(SPEC, served(wish), memory)
    assert planned.max_step_tokens == started.max_step_tokens == step_tokens


def test_the_runtime_reads_the_command_line_with_which_the_demo_asks_for_its_model():
    name, *arguments = example_arguments(Path("/cache"))
    assert main.get_command(Context(main), name) is example.command
    assert example.command.make_context(name, arguments).params == {"cache_dir": Path("/cache")}
    assert f"wisp-runtime {name} [--cache-dir DIR]" in CONTRACTS.read_text()
