"""Settings of ``wisp-runtime serve``: one frozen dataclass, from which the command line is generated.

The only module that reads the environment. Each field carries its parser (:mod:`.setting_parsers`), its
metavar and its help text; ``cli/serve.py`` turns fields into click options, and the operator's tests read
them here.
"""
# ruff: noqa: RUF009 (the calls in the class body make dataclass fields)

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from wisp_plan.memory.batch_sizes import BATCH_SIZES
from wisp_runtime.errors import ConfigError
from wisp_runtime.setting_fields import ENVIRONMENT_PREFIX, choice, flag, option, variable_of
from wisp_runtime.setting_parsers import (
    nearest,
    parse_auto_or,
    parse_digests,
    parse_duration,
    parse_integer,
    parse_keys,
    parse_memory,
    parse_none_or,
    parse_number,
    parse_path,
    parse_text,
)

OTHER_PROGRAMS = ("WISP_GATEWAY_", "WISP_OPERATOR_", "WISP_TEST_")  # prefixes that other programs check

Device = Literal["auto", "cpu", "cuda"]
Quantization = Literal["auto", "bf16", "fp8", "int8", "int4", "nvfp4"]
HeadQuantization = Literal["bf16", "fp8"]
KVCacheDtype = Literal["auto", "bf16", "fp8", "nvfp4", "turbo8", "turbo4", "turbo3"]
DecodePath = Literal["auto", "general", "persistent"]
GenerationDefaults = Literal["auto", "none"]
ToolParserName = Literal[
    "auto", "none", "harmony", "hermes", "llama3_json", "mistral", "pythonic", "qwen3_coder"
]
ReasoningParserName = Literal["auto", "none", "cohere", "gemma4", "harmony", "mistral", "seed_oss", "think"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

STEP_SEQUENCES, STEP_BLOCK_TOKENS = BATCH_SIZES[-1], 16
"""Limits of the persistent decode kernel: maximum of sequences, divisor of a KV block's tokens."""
DEFAULT_CACHE_DIR = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "wisp"
KERNELS_VARIABLE = "WISP_KERNELS"
"""Variable of the folder of compiled kernels; images set it. Not a flag of ``serve``."""
HANG_VARIABLE = "WISP_DECODE_HANG"
"""Variable that names the hang of the persistent decode kernel after which a server started itself again."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The settings of one runtime process. A field is a flag: ``max_context`` is ``--max-context``.

    Where ``auto`` is allowed on the command line and the value is a number, None means auto.
    """

    model: str
    served_name: str | None = option(
        None, parse_text, "NAME", "The id in /v1/models (default: last part of MODEL)."
    )
    alias: str | None = option(
        None, parse_text, "NAME", "A further id that requests may name; answers have the first one."
    )
    revision: str | None = option(None, parse_text, "REV", "Hub revision: a branch, a tag or a commit.")
    host: str = option(
        "0.0.0.0", parse_text, "ADDR", "Address to listen on; 127.0.0.1: for this machine alone."
    )
    port: int = option(8000, parse_integer(0, 65535), "N", "Port to listen on; 0 lets the system choose.")
    api_key: tuple[str, ...] = option(
        (), parse_keys, "KEY[,KEY]", "Keys, of which a request then needs one (Authorization: Bearer KEY)."
    )
    device: Device = choice(("auto", "cpu", "cuda"), "auto", "Device of the model.")
    max_context: int | None = option(
        None, parse_auto_or(parse_integer(2)), "auto|N", "Tokens a sequence may hold, prompt and answer."
    )
    max_concurrent: int | None = option(
        None,
        parse_auto_or(parse_integer(1, 65536)),
        "auto|N",
        "Sequences in one step; auto: as many as the KV cache holds with 1024 tokens each, up to 256 on a "
        "GPU and 32 on the CPU; down to half of that for the model's full context.",
    )
    quantization: Quantization = choice(
        get_args(Quantization),
        "auto",
        "Format of weights in memory; auto: as stored, where the GPU has kernels for that, else bf16.",
    )
    head_quantization: HeadQuantization = choice(
        get_args(HeadQuantization), "bf16", "Format of the head; fp8 rounds it while it loads, on a GPU."
    )
    kv_cache_dtype: KVCacheDtype = choice(
        get_args(KVCacheDtype),
        "auto",
        "Format of keys and values in memory; auto: bf16, on the CPU float32.",
    )
    kv_cache_bf16_layers: int = option(
        0,
        parse_integer(0),
        "N",
        "First and last layers whose keys and values stay bf16 with a smaller --kv-cache-dtype.",
    )
    decode_path: DecodePath = choice(
        get_args(DecodePath),
        "auto",
        "Decode steps on a GPU; auto: the persistent decode kernel where it is known to be faster; general: "
        "always a kernel an op; persistent: the persistent kernel for as many sequences as it takes, or no "
        "start. --deterministic requires auto.",
    )
    deterministic: bool = flag(
        False,
        "Batch-invariant tokens: a request's do not depend on other requests. Requires a Hopper GPU, "
        f"--max-concurrent up to {STEP_SEQUENCES}, and --block-tokens a multiple of {STEP_BLOCK_TOKENS}. "
        "Models without a batch-invariant persistent kernel (mixtures, hybrids, gpt-oss) take the general "
        "path in all decode steps; its cost was not measured.",
    )
    generation_config: GenerationDefaults = choice(
        ("auto", "none"),
        "auto",
        "Sampling of requests that name no temperature, top_p, top_k, min_p or repetition_penalty; auto: as "
        "the model's generation_config.json says; none: as the API does. Its end tokens count in both.",
    )
    tool_parser: ToolParserName = choice(
        get_args(ToolParserName),
        "auto",
        "Markup in which the model writes tool calls; auto: as its chat template shows; none: no tools.",
    )
    reasoning_parser: ReasoningParserName = choice(
        get_args(ReasoningParserName),
        "auto",
        "Markers of the model's thinking; auto: as its chat template shows; none: thinking is text.",
    )
    prefix_cache: bool = flag(True, "Reuse the keys and values of prompts that begin alike.")
    block_tokens: int = option(16, parse_integer(1, 1024), "N", "Tokens a KV block.")
    max_step_tokens: int | None = option(
        None,
        parse_auto_or(parse_integer(1, 1 << 20)),
        "auto|N",
        "Tokens a step may compute: the prefill chunk; auto: up to 8192 on a GPU, 512 on the CPU.",
    )
    max_waiting: int = option(
        1024, parse_integer(1, 1 << 20), "N", "Sequences that may wait for a place; more get 429."
    )
    max_queue_wait: float | None = option(
        600.0,
        parse_none_or(parse_duration),
        "none|DURATION",
        "Time after which a request that has not started gets 503, e.g. 30s.",
    )
    target_first_token: float | None = option(
        None,
        parse_none_or(parse_duration),
        "none|DURATION",
        "Time to the first token that is aimed at: steps of prompts take a quarter of it at most.",
    )
    target_per_token: float | None = option(
        None,
        parse_none_or(parse_duration),
        "none|DURATION",
        "Time between two tokens of a stream that is aimed at, e.g. 20ms; bounds a step's prompt tokens.",
    )
    kv_cache_memory: int | None = option(
        None, parse_auto_or(parse_memory), "auto|SIZE", "Memory for KV blocks, e.g. 512MiB."
    )
    memory_fraction: float = option(
        0.9,
        parse_number(0.0, 1.0, excludes_minimum=True),
        "F",
        "Share of the device's free memory that may be used.",
    )
    drain_timeout_s: float = option(
        30.0, parse_number(0.0, math.inf), "S", "After SIGTERM, let requests finish for at most this long."
    )
    threads: int | None = option(
        None, parse_auto_or(parse_integer(1, 4096)), "auto|N", "CPU threads; auto: measured at start."
    )
    cache_dir: Path = option(DEFAULT_CACHE_DIR, parse_path, "DIR", "Folder of downloads.")
    termination_log: Path | None = option(
        None, parse_path, "PATH", "File that gets the last error as JSON (Kubernetes: /dev/termination-log)."
    )
    pod_token_sha256: tuple[str, ...] = option(
        (),
        parse_digests,
        "HEX[,HEX]",
        "SHA-256 digests of the gateway's tokens, without which /v1 and /state then answer nobody.",
    )
    log_level: LogLevel = choice(("debug", "info", "warning", "error"), "info", "Level of the log on stderr.")
    log_format: LogFormat = choice(("text", "json"), "text", "Form of the log's lines.")
    otlp_endpoint: str | None = option(
        None, parse_text, "URL", "Collector of traces, OTLP over HTTP (default: OTEL_EXPORTER_OTLP_ENDPOINT)."
    )

    def __post_init__(self) -> None:
        """Check settings against each other.

        Raises:
            ConfigError: two settings contradict each other.
        """
        if self.max_step_tokens is not None and self.max_step_tokens < (self.max_concurrent or 1):
            raise ConfigError(
                f"--max-step-tokens {self.max_step_tokens} is less than --max-concurrent "
                f"{self.max_concurrent}; a step must hold one token of each sequence. "
                "Raise the first, lower the second, or leave the first to auto."
            )
        if self.deterministic and (why := self._why_not_deterministic()):
            raise ConfigError(f"--deterministic does not go with {why}, or leave out --deterministic.")

    def _why_not_deterministic(self) -> str:
        """Return the setting that excludes deterministic mode, with its remedy; or an empty text."""
        if self.device == "cpu":
            return "--device cpu: its GEMMs are not batch-invariant. Serve on a Hopper GPU"
        if self.decode_path != "auto":
            return f"--decode-path {self.decode_path}: it chooses the path itself. Use --decode-path auto"
        if self.kv_cache_dtype not in ("auto", "bf16"):
            return (
                f"--kv-cache-dtype {self.kv_cache_dtype}: it takes bf16 keys and values alone. "
                "Use --kv-cache-dtype auto"
            )
        if self.max_concurrent is not None and self.max_concurrent > STEP_SEQUENCES:
            limit = f"its decode steps have at most {STEP_SEQUENCES} sequences. Lower it to that"
            return f"--max-concurrent {self.max_concurrent}: {limit}"
        if self.block_tokens % STEP_BLOCK_TOKENS:
            tiles = f"its decode steps require a multiple of {STEP_BLOCK_TOKENS}"
            return f"--block-tokens {self.block_tokens}: {tiles}. Use {STEP_BLOCK_TOKENS}"
        return ""

    @property
    def name(self) -> str:
        """The model's id in ``/v1/models``: the served name, or ``model``'s last part without ``.gguf``."""
        if self.served_name:
            return self.served_name
        scheme, _, path = self.model.rpartition("://")
        path = path.partition("@")[0] if scheme == "hf" else path  # hf://ORG/NAME@REVISION
        name = Path(path).resolve().name if set(path) <= {".", "/"} else path.rstrip("/").rsplit("/", 1)[-1]
        return name.removesuffix(".gguf") or name

    @property
    def names(self) -> tuple[str, ...]:
        """The ids by which a request may name the model; the one in answers first."""
        return (self.name,) if self.alias in (None, self.name) else (self.name, self.alias)


def options() -> tuple[Field[Any], ...]:
    """Return the fields that are flags: all but ``model``, which is the argument."""
    return tuple(f for f in fields(ServeConfig) if f.name != "model")


def check_environment(environment: Mapping[str, str] | None = None) -> None:
    """Refuse ``WISP_*`` variables that set nothing, so that a mistyped setting is never silently lost.

    Raises:
        ConfigError: names the variable and the nearest known spelling.
    """
    known = [*(variable_of(option.name) for option in options()), KERNELS_VARIABLE, HANG_VARIABLE]
    for key in sorted(os.environ if environment is None else environment):
        if not key.startswith(ENVIRONMENT_PREFIX) or key.startswith(OTHER_PROGRAMS) or key in known:
            continue
        raise ConfigError(
            f"the environment variable {key} is no setting of wisp-runtime{nearest(key, known)}. "
            "Unset it, or see wisp-runtime serve --help for the names."
        )


def storage_settings() -> dict[str, str]:
    """Return the AWS tools' own variables, for ``s3://`` models."""
    return {key: value for key, value in os.environ.items() if key.startswith("AWS_")}


def kernels_dir() -> Path:
    """Return the folder of compiled kernels: ``WISP_KERNELS``, or ``kernels`` in the cache."""
    cache = Path(os.environ.get("WISP_CACHE_DIR") or DEFAULT_CACHE_DIR)
    return Path(os.environ.get(KERNELS_VARIABLE) or cache / "kernels").expanduser()


def trace_endpoint(config: ServeConfig) -> str | None:
    """Return the base URL of the collector of traces, or None."""
    return config.otlp_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None


def decode_hang() -> str:
    """Return the hang after which this process started again (:mod:`.server.restart`); empty if none."""
    return os.environ.get(HANG_VARIABLE, "")


def environment_after(hang: str) -> dict[str, str]:
    """Return this process's environment with ``hang`` as the reason of the start."""
    return os.environ | {HANG_VARIABLE: hang}


def cuda_home() -> Path | None:
    """Return ``CUDA_HOME``, the toolkit's folder; only ``kernels build`` reads it."""
    return Path(os.environ["CUDA_HOME"]) if os.environ.get("CUDA_HOME") else None
