"""Requests whose path shows a wrong base URL: ``/v1`` twice or not at all, or an endpoint in it.

Pure; gateway and runtime use it for their 404.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = "v1"
OWN_PREFIX = "openai"
MODEL_SEGMENTS = 2  # /<namespace>/<name>/v1
MAX_PATH_CHARS = 400  # longer ones are no settings of a client
ENDPOINTS = (
    *("chat/completions", "completions", "messages/count_tokens", "messages"),
    *("responses/input_tokens", "responses", "models"),
    *("embeddings", "score", "rerank", "tokenize", "detokenize"),
)
IN_BASE_URLS = (VERSION, "chat/completions", "completions", "messages", "embeddings")
"""Ends of a base URL that do not belong there."""


@dataclass(frozen=True, slots=True)
class MeantPath:
    """Path that a client with the right base URL would have asked for.

    Attributes:
        prefix: path before ``/v1``, as the server has it; empty for none.
        endpoint: path behind ``/v1/``.
        is_doubled: whether ``/v1`` was there twice.
    """

    prefix: str
    endpoint: str
    is_doubled: bool

    @property
    def remedy(self) -> str:
        """Sentence that names the base URL to set."""
        root = f"http://HOST:PORT{self.prefix}"
        there = f"The path is {self.prefix}/{VERSION}/{self.endpoint}"
        if self.endpoint.startswith("messages"):
            return f"{there}: leave /v1 out of base_url ({root}); Anthropic's SDK adds it."
        if self.is_doubled:
            return f"{there}: leave one /v1 out of base_url ({root}/v1 for OpenAI's SDK)."
        return f"{there}: set base_url to {root}/v1, to which OpenAI's SDK adds the endpoint."


def meant_path(path: str, *, has_prefixes: bool = False) -> MeantPath | None:
    """Return the path that a request for an unknown ``path`` meant; None: it shows no wrong base URL.

    Args:
        path: path that the server does not have.
        has_prefixes: whether the server has its paths also behind ``/openai`` and ``/<namespace>/<name>``.
    """
    endpoint = next((name for name in ENDPOINTS if path.endswith(f"/{name}")), None)
    if endpoint is None or len(path) > MAX_PATH_CHARS:
        return None
    base = path.removesuffix(f"/{endpoint}")
    prefix = _stripped(base)
    if not has_prefixes or not _is_prefix(prefix):
        prefix = ""
    if f"{prefix}/{VERSION}/{endpoint}" == path:
        return None
    return MeantPath(prefix, endpoint, base.endswith(f"/{VERSION}/{VERSION}"))


def _stripped(base: str) -> str:
    """Return a base URL's path without the ends that do not belong there."""
    while end := next((end for end in IN_BASE_URLS if base.endswith(f"/{end}")), None):
        base = base.removesuffix(f"/{end}")
    return base


def _is_prefix(prefix: str) -> bool:
    _, *segments = prefix.split("/") or [""]
    return segments == [OWN_PREFIX] or (len(segments) == MODEL_SEGMENTS and all(segments))
