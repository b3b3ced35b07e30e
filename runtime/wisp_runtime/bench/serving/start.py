"""Benchmark of a server's start, from its process's start to the first streamed token."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from wisp_runtime.bench import nvml
from wisp_runtime.bench.baselines.published import with_baseline
from wisp_runtime.bench.record import Row
from wisp_runtime.bench.serving.served import HOST, NAME, serve
from wisp_runtime.engine.persistent.strategy import DecodeStrategy

_PROMPT = [17, 42, 7]


@dataclass(frozen=True, slots=True)
class Start:
    """One start.

    Attributes:
        ready_s: seconds from the process's start until ``/readyz`` returned 200.
        first_token_s: seconds until the first streamed token of a request sent at that moment.
        state: body of ``/state`` after that.
        gpu_bytes: NVML's bytes of the server and its engine; None where NVML does not report them.
    """

    ready_s: float
    first_token_s: float
    state: dict[str, Any]
    gpu_bytes: int | None


def start_rows(
    folder: Path, shape: str, *, device: str, repeats: int, flags: Sequence[str], within_s: float = 300.0
) -> Iterator[Row]:
    """Start a server ``repeats`` times after a first that is not counted, and summarize.

    Args:
        folder: folder of the model; its files are in the page cache after the first start.
        shape: name of the model in the rows.
        device: ``cuda`` or ``cpu``.
        repeats: number of starts.
        flags: further flags of ``serve``.
        within_s: timeout of a start.

    Raises:
        EngineDied: the server ended, or sent no token in time.
    """
    starts = [start_once(folder, device=device, flags=flags, within_s=within_s) for _ in range(repeats + 1)]
    first, *counted = starts
    row = row_maker(shape, device, first.state)
    card = nvml.card() if device == "cuda" else None
    total = row(
        "start_to_first_token_s",
        statistics.median(start.first_token_s for start in counted),
        ready_s=statistics.median(start.ready_s for start in counted),
        runs_s=[round(start.first_token_s, 3) for start in counted],
        uncounted_s=round(first.first_token_s, 3),
    )
    yield with_baseline(total, card.name if card else None)
    for phase in first.state["phases"]:
        equal = [each for start in counted for each in start.state["phases"] if each["name"] == phase["name"]]
        seconds = statistics.median(each["seconds"] for each in equal)
        yield row("start_phase_s", seconds, phase=phase["name"], bytes=equal[-1]["bytes"])
    yield from _memory_rows(counted[-1], row)


def row_maker(shape: str, device: str, state: Mapping[str, Any] | None = None) -> Callable[..., Row]:
    """Return the maker of rows about a server: ``make(metric, value, batch=1, context=0, **more)``.

    Args:
        shape, device: fields of the rows.
        state: body of the server's ``/state``, for the path of its decode steps.
    """
    held = "bf16" if device == "cuda" else "float32"
    kernels = (state or {}).get("kernels")
    strategy = (
        DecodeStrategy.from_dict(kernels)
        if kernels
        else DecodeStrategy("general" if device == "cuda" else "reference")
    )

    def make(metric: str, value: float, *, batch: int = 1, context: int = 0, **more: object) -> Row:
        path = strategy.path_of(batch, batch * context)
        return Row(metric, value, path, shape, held, held, batch, context, more=more)

    return make


def _memory_rows(start: Start, row: Callable[..., Row]) -> Iterator[Row]:
    if start.gpu_bytes is None:
        return
    predicted = start.state["ledger"]["totalBytes"]
    off_percent = 100 * (start.gpu_bytes - predicted) / predicted
    yield row("memory_predicted_bytes", predicted, source="served")
    yield row("memory_measured_bytes", start.gpu_bytes, source="served", off_percent=off_percent)


def start_once(folder: Path, *, device: str, flags: Sequence[str], within_s: float) -> Start:
    """Start a server, request a token as soon as it is ready, read its state, and end it.

    Raises:
        EngineDied: it ended, or sent no token in time.
    """
    with serve(folder, device=device, flags=flags, within_s=within_s) as served:
        _first_token(served.port, within_s)
        first_token_s = time.monotonic() - served.began_s
        return Start(served.ready_s, first_token_s, served.state(), served.gpu_bytes())


def _first_token(port: int, within_s: float) -> None:
    """Request a few tokens and return when the first arrives."""
    body = {"model": NAME, "prompt": _PROMPT, "max_tokens": 8, "stream": True, "ignore_eos": True}
    with contextlib.closing(HTTPConnection(HOST, port, timeout=within_s)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        for line in response:
            if response.status != 200:
                raise HTTPException(f"{response.status}: {line.decode(errors='replace')[:300]}")
            if line.startswith(b"data:"):
                return
    raise HTTPException("the stream ended without a token")
