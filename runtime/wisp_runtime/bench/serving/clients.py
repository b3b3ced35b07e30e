"""Concurrent streaming clients over HTTP, with the arrival time of each token.

They use the public API only, so that the same clients measure a runtime, a gateway in front of it, or another
server. An event of a stream counts as a token: it is one where tokens are complete characters.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
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
    """One stream: send time of its request and arrival times of its events, seconds of one clock."""

    sent_s: float
    events_s: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second after the first."""
        return (len(self.events_s) - 1) / (self.events_s[-1] - self.events_s[0])


@dataclass(frozen=True, slots=True)
class Load:
    """Load of concurrent clients.

    Attributes:
        host, port: address of the server.
        model: served name of the model.
        clients: number of concurrent streams.
        prompt_tokens: length of each prompt, of random tokens.
        tokens: tokens that each requests.
        vocab: upper bound of the prompts' token ids.
        seed: seed of the prompts.
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
    """Run all streams to their end.

    Raises:
        HTTPException: the server refused, or ended a stream early.
        OSError: it cannot be reached, or takes too long.
    """
    return asyncio.run(_stream_all(load))


async def _stream_all(load: Load) -> list[Streamed]:
    rng = random.Random(load.seed)
    prompts = [rng.choices(range(load.vocab), k=load.prompt_tokens) for _ in range(load.clients)]
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
    begin = max(stream.events_s[0] for stream in streams)
    end = min(stream.events_s[-1] for stream in streams)
    return [
        1e3 * (after - before)
        for stream in streams
        for before, after in pairwise(stream.events_s)
        if begin <= before and after <= end
    ]


def figures(streams: Sequence[Streamed], tokens_each: int) -> Iterator[tuple[str, float, dict[str, object]]]:
    """Yield metrics of a load: name, value, further fields.

    ``mean`` is per token, also of a server that puts several tokens into an event: for comparisons.
    """
    gaps = sorted(steady_gaps_ms(streams))
    spread = Spread.of(gaps)
    events = sum(len(stream.events_s) for stream in streams)
    tokens = tokens_each * len(streams)
    more: dict[str, object] = {
        "mean": statistics.fmean(gaps) * events / tokens,
        "p99": gaps[int(0.99 * (len(gaps) - 1))],
    }
    yield "served_gap_ms", spread.median, spread.to_dict() | more
    firsts = sorted(1e3 * (stream.events_s[0] - stream.sent_s) for stream in streams)
    yield "served_first_token_ms", Spread.of(firsts).median, {"most": firsts[-1]}
    seconds = max(stream.events_s[-1] for stream in streams) - min(stream.sent_s for stream in streams)
    each = Spread.of([stream.tokens_per_s for stream in streams]).median
    yield "served_tokens_per_s", tokens / seconds, {"each": each}
