"""Gaps between tokens of seven requests, with and without an eighth that has a presence penalty.

    python tests/bench/bench_penalty_overlap.py                                       the example model, CPU
    python tests/bench/bench_penalty_overlap.py --device cuda --shape llama-3-8b      random weights
    python tests/bench/bench_penalty_overlap.py --http                                streams of a server

Three cases take turns, so that what else the machine does slows all: seven requests alone, with an eighth
that has no penalty, with an eighth that has one. The third against the second is what a penalty costs the
others. Prints JSON. A benchmark, not a test: it asserts no time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

Times = dict[str, list[float]]
Drive = Callable[[str, dict[str, float]], Times]
"""Runs requests to their end: name of the round and penalties in, times of the tokens of each request out."""

PLAIN = {f"plain-{number}": 0.0 for number in range(7)}
CASES = {"seven": PLAIN, "eight": PLAIN | {"eighth": 0.0}, "penalised": PLAIN | {"eighth": 0.5}}
_WARM_UP_TOKENS = 8  # of each request: its prompt's step and a graph's capture are among them


class ScriptedChannel:
    """The server's end of the engine's loop: it submits requests at once and notes when their tokens came."""

    def __init__(self, requests: list[Any], shutdown: Any) -> None:
        self._inbox, self._shutdown = requests, shutdown
        self.times: Times = {request.request_id: [] for request in requests}

    def receive(self, *, waits: bool) -> list[Any]:
        """Return the requests, then nothing until all have ended."""
        messages, self._inbox = self._inbox or ([self._shutdown] if waits else []), []
        return messages

    def send(self, message: Any) -> None:
        """Note the time of each token."""
        now_s = time.perf_counter()
        for event in message.events:
            assert event.finish != "error", event.message
            self.times[event.request_id].append(now_s)


def engine_drive(options: argparse.Namespace) -> Drive:
    """Bring up an engine in this process."""
    from wisp_runtime.bench.target import TargetOptions, open_target
    from wisp_runtime.engine.loop import run
    from wisp_runtime.engine.transport.messages import SamplingParams, Shutdown, Submit

    context = options.prompt + options.tokens + 16
    target = open_target(
        TargetOptions(options.model, options.device, 8, context, kv_tokens=8 * (context + 64))
    )

    def drive(name: str, penalties: dict[str, float]) -> Times:
        requests = [
            Submit(
                f"{name}-{key}",
                tuple(prompt),
                options.tokens,
                SamplingParams(temperature=0.0, presence_penalty=penalty),
                ignore_eos=True,
            )
            for (key, penalty), prompt in zip(penalties.items(), prompts(options, name), strict=False)
        ]
        channel = ScriptedChannel(requests, Shutdown())
        run(channel, target.scheduler(), target.runner)
        return {key.removeprefix(f"{name}-"): times for key, times in channel.times.items()}

    return drive


@contextlib.contextmanager
def http_drive(options: argparse.Namespace) -> Iterator[Drive]:
    """Start ``wisp-runtime serve`` in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    program = "from wisp_runtime.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", options.model, "--served-name", "measured"]
    command += [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        options.device,
        "--max-concurrent",
        "8",
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while server.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10).close()
                break
            time.sleep(0.05)
        yield lambda name, penalties: asyncio.run(
            _stream_all(port, penalties, prompts(options, name), options)
        )
    finally:
        server.terminate()
        server.wait()


async def _stream_all(
    port: int, penalties: dict[str, float], asked: list[list[int]], options: argparse.Namespace
) -> Times:
    streams = [
        _stream(port, penalty, prompt, options)
        for penalty, prompt in zip(penalties.values(), asked, strict=False)
    ]
    return dict(zip(penalties, await asyncio.gather(*streams), strict=True))


async def _stream(port: int, penalty: float, prompt: list[int], options: argparse.Namespace) -> list[float]:
    body = {"model": "measured", "prompt": prompt, "max_tokens": options.tokens, "stream": True}
    body |= {"ignore_eos": True, "temperature": 0, "presence_penalty": penalty}
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content)
    times: list[float] = []
    while not (line := await reader.readline()).startswith(b"data: [DONE]"):
        if line.startswith(b"data:"):
            times.append(time.perf_counter())
        elif not line:
            raise ConnectionError(f"a stream ended after {len(times)} events, without [DONE]")
    writer.close()
    return times


def prompts(options: argparse.Namespace, name: str) -> list[list[int]]:
    """Return eight prompts of random token ids, the same for a round of the same name."""
    source = random.Random(name.partition("-")[0])
    return [source.choices(range(256), k=options.prompt) for _ in range(8)]


def measure(drive: Drive, rounds: int) -> dict[str, Any]:
    """Run the cases in turn; return the median gap of the seven in each, in milliseconds."""
    gaps: dict[str, list[float]] = {case: [] for case in CASES}
    for number in range(rounds + 1):
        for case, penalties in CASES.items():
            times = drive(f"{number}-{case}", penalties)
            if number:  # the first round loads and captures
                gaps[case] += [
                    1e3 * (after - before)
                    for key in PLAIN
                    for before, after in pairwise(times[key][_WARM_UP_TOKENS:])
                ]
    medians = {case: statistics.median(times) for case, times in gaps.items()}
    fast = {case: statistics.quantiles(times, n=10)[0] for case, times in gaps.items()}
    return {
        "median_gap_ms": {case: round(median, 4) for case, median in medians.items()},
        "tenth_gap_ms": {
            case: round(gap, 4) for case, gap in fast.items()
        },  # of a machine that is busy otherwise
        "gaps": len(gaps["seven"]),
        "penalty_percent": round(100 * (medians["penalised"] / medians["eight"] - 1), 2),
        "penalty_percent_of_tenth": round(100 * (fast["penalised"] / fast["eight"] - 1), 2),
    }


def main() -> None:
    """Read the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--shape", help="a named shape (random weights) or a folder; default: the example model"
    )
    parser.add_argument("--http", action="store_true", help="measure streams of a server (a folder only)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.model = options.shape
    if options.model is None:
        from wisp_runtime.convert.example import example_model

        options.model = str(example_model())
    with http_drive(options) if options.http else contextlib.nullcontext(engine_drive(options)) as drive:
        result = measure(drive, options.rounds)
    import wisp_runtime

    tree = str(Path(wisp_runtime.__file__ or "").parents[2])
    settings = {
        name: getattr(options, name) for name in ("device", "model", "http", "prompt", "tokens", "rounds")
    }
    print(json.dumps({"tree": tree} | settings | result, indent=2))


if __name__ == "__main__":
    main()
