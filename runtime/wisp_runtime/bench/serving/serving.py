"""Benchmark of a served model under concurrent streaming clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

from wisp_runtime.bench.record import Row
from wisp_runtime.bench.serving.clients import Load, figures, stream_all
from wisp_runtime.bench.serving.served import HOST, NAME, serve
from wisp_runtime.bench.serving.start import row_maker
from wisp_runtime.errors import ConfigError, EngineDied
from wisp_runtime.models.load import read_spec

_WARM_UP_TOKENS = 24
_MIN_VOCAB = 256  # every byte-level vocabulary has at least as many tokens


def serving_rows(
    folder: Path,
    shape: str,
    *,
    device: str,
    flags: Sequence[str],
    clients: Sequence[int],
    prompt: int,
    tokens: int,
    within_s: float = 300.0,
) -> Iterator[Row]:
    """Start a server on ``folder`` and measure it under each number of clients.

    Args:
        folder: folder of the model.
        shape: name of the model in the rows.
        device: ``cuda`` or ``cpu``.
        flags: further flags of ``serve``.
        clients: numbers of concurrent streams.
        prompt, tokens: prompt and completion tokens of each request.
        within_s: timeout of the start.

    Raises:
        EngineDied: the server ended, or refused.
    """
    vocab = read_spec(folder).vocab
    with serve(folder, device=device, flags=flags, within_s=within_s) as served:
        load = Load(HOST, served.port, NAME, 1, prompt, tokens, vocab)
        yield from _rows(load, clients, row_maker(shape, device, served.state()))


def rows_of_url(
    url: str, shape: str, *, device: str, clients: Sequence[int], prompt: int, tokens: int
) -> Iterator[Row]:
    """Measure a running server.

    Args:
        url: ``HOST:PORT/MODEL``.
        shape: name of the model in the rows.
        device: device in the rows.
        clients, prompt, tokens: see :func:`serving_rows`; prompts use the first 256 token ids alone.

    Raises:
        ConfigError: the URL is not of that form.
        EngineDied: the server cannot be reached, or refused.
    """
    address, _, model = url.removeprefix("http://").partition("/")
    host, _, port = address.partition(":")
    if not (host and port.isdigit() and model):
        raise ConfigError(f"--url {url}: it must be HOST:PORT/MODEL, such as 127.0.0.1:8080/smollm2")
    load = Load(host, int(port), model, 1, prompt, tokens, _MIN_VOCAB)
    try:
        yield from _rows(load, clients, row_maker(shape, device))
    except (OSError, HTTPException) as error:
        raise EngineDied(f"{url} did not serve: {error or type(error).__name__}") from error


def _rows(load: Load, clients: Sequence[int], row: Callable[..., Row]) -> Iterator[Row]:
    for count in clients:
        stream_all(replace(load, clients=count, tokens=_WARM_UP_TOKENS, seed=2 * count))
        streams = stream_all(replace(load, clients=count, seed=2 * count + 1))
        for metric, value, more in figures(streams, load.tokens):
            yield row(metric, value, batch=count, context=load.prompt_tokens, **more)
