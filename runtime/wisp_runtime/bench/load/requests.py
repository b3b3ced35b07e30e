"""Requests of a load test: address of the server, and the bytes of each HTTP request."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from wisp_runtime.bench.load.trace import Arrival, prompt_ids
from wisp_runtime.errors import ConfigError

Endpoint = Literal["completions", "chat"]
Prompts = Literal["ids", "words"]

MIN_VOCAB = 256  # every byte-level vocabulary has at least as many tokens
_WORD_LETTERS = 4  # a word of so many letters and its space are one or two tokens of usual vocabularies


@dataclass(frozen=True, slots=True)
class Address:
    """An OpenAI server: ``http://127.0.0.1:8000``, with or without ``/v1``.

    Attributes:
        host, port: TCP address.
        is_tls: whether the scheme is https.
        path: prefix of the API's paths, ending in ``/v1``.
    """

    host: str
    port: int
    is_tls: bool
    path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse a URL.

        Raises:
            ConfigError: it is not of the form http[s]://HOST[:PORT][/PATH].
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url}: it must be http://HOST:PORT, such as http://127.0.0.1:8080")
        is_tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, path)

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, and so on its GPU."""
        return self.host in ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Settings of all requests.

    Attributes:
        model: served name of the model.
        endpoint: ``completions``, or ``chat`` for servers without completions.
        prompts: ``ids`` (exact lengths) or ``words`` (random words, about as many tokens).
        vocab: upper bound of token ids.
        api_key: bearer token, if any.
        ignores_eos: whether ``ignore_eos`` is sent, so that answers have the planned lengths.
        temperature: sampling temperature; 0 is greedy.
    """

    model: str
    endpoint: Endpoint = "completions"
    prompts: Prompts = "ids"
    vocab: int = MIN_VOCAB
    api_key: str | None = None
    ignores_eos: bool = True
    temperature: float = 0.0


def encode_requests(
    address: Address, options: RequestOptions, arrivals: Sequence[Arrival], seed: int
) -> list[bytes]:
    """Return the bytes of each request, so that none is encoded while the clock runs."""
    prompts: Sequence[list[int] | str]
    if options.prompts == "ids" and options.endpoint == "completions":
        prompts = prompt_ids(arrivals, options.vocab, seed)
    else:
        rng = random.Random(f"{seed} words {len(arrivals)}")
        prompts = [_words(rng, arrival.prompt_tokens) for arrival in arrivals]
    return [
        _encode(address, options, prompt, arrival.output_tokens)
        for prompt, arrival in zip(prompts, arrivals, strict=True)
    ]


def _encode(address: Address, options: RequestOptions, prompt: list[int] | str, output_tokens: int) -> bytes:
    body: dict[str, object] = {
        "model": options.model,
        "max_tokens": output_tokens,
        "temperature": options.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.ignores_eos:
        body["ignore_eos"] = True
    if options.endpoint == "chat":
        path, body["messages"] = "chat/completions", [{"role": "user", "content": prompt}]
    else:
        path, body["prompt"] = "completions", prompt
    content = json.dumps(body).encode()
    lines = [
        f"POST {address.path}/{path} HTTP/1.1",
        f"Host: {address.host}:{address.port}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"Content-Length: {len(content)}",
        "Connection: close",
        *([f"Authorization: Bearer {options.api_key}"] if options.api_key else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


def _words(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices(string.ascii_lowercase, k=_WORD_LETTERS)) for _ in range(count))
