"""Clients that stream side by side over HTTP, and when each of their tokens came.

They need the API and nothing of ours, so that the same clients measure a runtime, a gateway before it, or
another server. An event of a stream counts as a token: it is one where tokens are whole characters.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from itertools import pairwise

from wisp_runtime.bench.record import Spread

_WITHIN_S = 300.0
_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Streamed:
    """One stream: when its request was sent, and when each of its events came; seconds of one clock."""

    sent_s: float
    events_s: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        """How fast it ran once it had begun."""
        return (len(self.events_s) - 1) / (self.events_s[-1] - self.events_s[0])


@dataclass(frozen=True, slots=True)
class Load:
    """What clients do, all at once.

    Attributes:
        host, port: of the server.
        model: its name there.
        clients: streams side by side.
        prompt_tokens: of each prompt, random.
        tokens: that each asks for.
        vocab: token ids of prompts are below it.
        seed: of the prompts; those of other seeds are others.
    """

    host: str
    port: int
    model: str
    clients: int
    prompt_tokens: int
    tokens: int
    vocab: int
    seed: int = 0


def stream_all(load: Load) -> list[Streamed]:
    """Let all clients stream to their end.

    Raises:
        HTTPException: the server refused, or ended a stream early.
        OSError: it cannot be reached, or takes too long.
    """
    return asyncio.run(_stream_all(load))


async def _stream_all(load: Load) -> list[Streamed]:
    draw = random.Random(load.seed)
    prompts = [draw.choices(range(load.vocab), k=load.prompt_tokens) for _ in range(load.clients)]
    async with asyncio.timeout(_WITHIN_S):
        return await asyncio.gather(*(_stream(load, prompt) for prompt in prompts))


async def _stream(load: Load, prompt: list[int]) -> Streamed:
    body = {"model": load.model, "prompt": prompt, "max_tokens": load.tokens, "stream": True}
    content = json.dumps(body | {"ignore_eos": True, "temperature": 0}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {load.host}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection(load.host, load.port, limit=_LINE_BYTES)
    try:
        sent_s = time.perf_counter()
        writer.write(head.encode() + content)
        status = await reader.readline()
        if b" 200 " not in status:
            raise HTTPException(
                f"{status.decode().strip()}: {(await reader.read(500)).decode(errors='replace')}"
            )
        events_s = []
        while not (line := await reader.readline()).startswith(b"data: [DONE]"):
            if line.startswith(b"data:"):
                events_s.append(time.perf_counter())
            elif not line:
                raise HTTPException(f"a stream ended after {len(events_s)} events, without [DONE]")
        return Streamed(sent_s, tuple(events_s))
    finally:
        writer.close()


def steady_gaps_ms(streams: Sequence[Streamed]) -> list[float]:
    """Return the milliseconds between events while every stream runs: after all began, before any ended."""
    begin = max(one.events_s[0] for one in streams)
    end = min(one.events_s[-1] for one in streams)
    return [
        1e3 * (after - before)
        for one in streams
        for before, after in pairwise(one.events_s)
        if begin <= before and after <= end
    ]


def figures(streams: Sequence[Streamed]) -> Iterator[tuple[str, float, dict[str, object]]]:
    """Yield metrics of a load: name, value, and what stands beside it."""
    gaps = sorted(steady_gaps_ms(streams))
    spread = Spread.of(gaps)
    yield "served_gap_ms", spread.median, spread.to_dict() | {"p99": gaps[int(0.99 * (len(gaps) - 1))]}
    firsts = sorted(1e3 * (one.events_s[0] - one.sent_s) for one in streams)
    yield "served_first_token_ms", Spread.of(firsts).median, {"most": firsts[-1]}
    tokens = sum(len(one.events_s) for one in streams)
    seconds = max(one.events_s[-1] for one in streams) - min(one.sent_s for one in streams)
    each = Spread.of([one.tokens_per_s for one in streams]).median
    yield "served_tokens_per_s", tokens / seconds, {"each": each}
