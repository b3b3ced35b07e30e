"""Command line of `llama-server`, as far as its tests use it, and the runtime that it asks for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

SWITCHES = (
    *("--offline", "--cont-batching", "--embedding", "--reranking", "--metrics", "--kv-unified", "--slots"),
    *(
        "--no-slots",
        "--verbose",
        "--context-shift",
        "--no-ui",
        "--no-models-autoload",
        "--jinja",
        "--no-jinja",
    ),
    *("--no-cache-idle-slots", "--ui-mcp-proxy", "--backend_sampling"),
)
VALUES = (
    *(
        "--host",
        "--port",
        "--temp",
        "--seed",
        "--model",
        "--model-url",
        "--model-draft",
        "--hf-repo",
        "--hf-file",
    ),
    *("--models-dir", "--models-max", "--models-preset", "--cors-origins", "--batch-size", "--ubatch-size"),
    *(
        "--threads",
        "--n-gpu-layers",
        "--pooling",
        "--alias",
        "--tags",
        "--ctx-size",
        "--parallel",
        "-ctk",
        "-ctv",
    ),
    *("-fa", "--n-predict", "--slot-save-path", "--grp-attn-n", "--grp-attn-w", "--lora", "--spec-type"),
    *("--api-key", "--spec-draft-n-max", "--spec-draft-n-min", "--reasoning-format", "--reasoning"),
    *("--chat-template", "--chat-template-file", "--mmproj-url", "--media-path", "--sleep-idle-seconds"),
    *("--cache-ram", "--tools"),
)
DEFAULT_CONTEXT = 2048


@dataclass(frozen=True)
class RuntimeSettings:
    """A runtime, and whether the gateway stands before it.

    Args:
        names: names of the model, the first of which answers have.
        context: tokens of a sequence; llama.cpp divides `--ctx-size` by the number of sequences.
        max_concurrent: sequences in one step.
        temperature: temperature of requests that name none.
        pooling: `mean`, or the model's own.
        template: file of a chat template, or the model's own.
        api_key: key that requests must have, checked by the gateway.
        allowed_origin: origin of web pages that may call, answered by the gateway.
    """

    names: tuple[str, ...]
    context: int
    max_concurrent: int
    temperature: float
    pooling: str | None
    template: str | None
    api_key: str | None
    allowed_origin: str | None

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes) -> RuntimeSettings:
        values = json.loads(text)
        return cls(**{**values, "names": tuple(values["names"])})


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, RuntimeSettings]:
    """Return the flags, and the runtime that they ask for; a flag that is not known ends the program."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for switch in SWITCHES:
        parser.add_argument(switch, action="store_true")
    for name in VALUES:
        parser.add_argument(name)
    flags = parser.parse_args(arguments)
    slots = int(flags.parallel or 4)
    context = int(flags.ctx_size or DEFAULT_CONTEXT * slots)
    settings = RuntimeSettings(
        names=tuple((flags.alias or "smollm2").split(",")),
        context=context if flags.kv_unified else context // slots,
        max_concurrent=slots,
        temperature=float(flags.temp or 0.8),
        pooling=flags.pooling if flags.pooling == "mean" else None,
        template=flags.chat_template_file if flags.jinja else None,
        api_key=flags.api_key,
        allowed_origin="*" if flags.api_key else None,
    )
    return flags, settings
