"""Benchmark of a server whose GPU another process uses too: answers, gaps, and the decode path.

The other process multiplies 8192 x 8192 matrices while the server gets 5 requests a second, greedy ones. It
starts after the server, and then before it; in time slices, and with ``--mps`` as another client of an MPS
server that this program starts. Each answer is compared with those of undisturbed servers, one for each
decode path: at the first token that differs, both candidates must be about as likely, for paths and batches
round differently. Needs torch:

    python tests/bench/bench_gpu_neighbour.py --checkpoint /tmp/model --record /tmp/neighbour.json [--mps]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from wisp_runtime.bench.checkpoint import is_written, write_checkpoint
from wisp_runtime.bench.serving.served import HOST, NAME, Served, serve

PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS, RATE = 40, 64, 48, 5.0
TIE_NATS = 0.25
"""Difference of log-probabilities up to which two paths may sample either token; random weights have many."""

_NEIGHBOUR = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
b = torch.randn_like(a)
print("began", flush=True)
began, count = time.monotonic(), 0
while time.monotonic() - began < {seconds}:
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
    count += 20
print(count / (time.monotonic() - began), flush=True)
"""


@dataclass(slots=True)
class Answer:
    """One answer: tokens, the best log-probabilities at each, and times; ``error`` if it failed."""

    sent_s: float
    tokens: list[str] = field(default_factory=list)
    best: list[dict[str, float]] = field(default_factory=list)
    events_s: list[float] = field(default_factory=list)
    error: str = ""


async def ask(port: int, prompt: Sequence[int]) -> Answer:
    """Stream one answer."""
    answer = Answer(time.perf_counter())
    body = {"model": NAME, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "stream": True, "logprobs": 2}
    content = json.dumps(body | {"ignore_eos": True, "temperature": 0}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    try:
        reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 20)
        writer.write(head.encode() + content)
        await _read(reader, answer)
        writer.close()
    except (OSError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


async def _read(reader: asyncio.StreamReader, answer: Answer) -> None:
    status = await reader.readline()
    if b" 200 " not in status:
        answer.error = status.decode().strip() + (await reader.read(600)).decode(errors="replace")[-300:]
        return
    answer.error = "the stream ended without [DONE]"
    while line := await reader.readline():
        if line.startswith(b"data: [DONE]"):
            answer.error = ""
        elif line.startswith(b"data:"):
            event = json.loads(line[5:])
            if "error" in event:
                answer.error = str(event["error"].get("message"))
                return
            logprobs = event["choices"][0].get("logprobs") or {}
            answer.tokens += logprobs.get("tokens", [])
            answer.best += logprobs.get("top_logprobs", [])
            answer.events_s.append(time.perf_counter())


async def load(served: Served, prompts: Sequence[Sequence[int]], seconds: float) -> tuple[Any, Any]:
    """Send :data:`RATE` requests a second; return the answers and the decode paths that ``/state`` showed."""
    tasks: list[asyncio.Task[Answer]] = []
    paths: list[str] = []
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        tasks.append(asyncio.create_task(ask(served.port, prompts[len(tasks) % PROMPTS])))
        if len(tasks) % 5 == 1:
            paths.append(await asyncio.to_thread(decode_path, served))
        await asyncio.sleep(max(0.0, began_s + len(tasks) / RATE - time.perf_counter()))
    return await asyncio.gather(*tasks), paths


def decode_path(served: Served) -> str:
    """Return the decode path that ``/state`` shows."""
    try:
        return str((served.state().get("kernels") or {}).get("decodePath"))
    except (OSError, ValueError) as error:
        return str(error)


def is_wrong(answer: Answer, reference: Answer) -> bool:
    """Return whether the first token that differs was clearly less likely than the reference's."""
    for mine, theirs, best in zip(answer.tokens, reference.tokens, reference.best, strict=False):
        if mine != theirs:
            return mine not in best or max(best.values()) - best[mine] > TIE_NATS
    return False


def row(phase: str, answers: Any, paths: Any, references: Any, rate: float = 0) -> dict[str, Any]:
    """Summarise what the clients of one phase saw."""
    gaps = sorted(1e3 * (b - a) for answer in answers for a, b in pairwise(answer.events_s)) or [0.0]
    firsts = sorted(1e3 * (answer.events_s[0] - answer.sent_s) for answer in answers if answer.events_s)
    wrong = [
        number
        for number, answer in enumerate(answers)
        if not answer.error and all(is_wrong(answer, alone[number % PROMPTS]) for alone in references)
    ]
    changes = [path for path, before in zip(paths, [None, *paths], strict=False) if path != before]
    return {
        "phase": phase,
        "requests": len(answers),
        "failed": sum(bool(answer.error) for answer in answers),
        "errors": sorted({answer.error for answer in answers if answer.error})[:4],
        "wrong_answers": len(wrong),
        "gap_ms": {"median": gaps[len(gaps) // 2], "p99": gaps[int(0.99 * len(gaps))], "max": gaps[-1]},
        "first_token_ms_median": firsts[len(firsts) // 2] if firsts else None,
        "decode_paths": ", ".join(changes),
        "neighbour_products_per_s": rate,
    }


@contextlib.contextmanager
def neighbour(seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Run the other process; yield once it multiplies."""
    command = [sys.executable, "-c", _NEIGHBOUR.format(seconds=seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def products_per_s(process: subprocess.Popen[str]) -> float:
    """Wait for the other process; return how many matrices it multiplied a second."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    return float(line) if line else 0


@contextlib.contextmanager
def mps_server() -> Iterator[None]:
    """Run an MPS server of our own; every process started inside is a client."""
    with tempfile.TemporaryDirectory() as folder:
        names = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(names)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False)
            for name in names:
                del os.environ[name]


def measure(checkpoint: Path, seconds: float, flags: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row a phase."""
    prompts = [random.Random(number).choices(range(100_000), k=PROMPT_TOKENS) for number in range(PROMPTS)]
    quiet_s = PROMPTS / RATE

    def start(*more: str) -> contextlib.AbstractContextManager[Served]:
        return serve(checkpoint, device="cuda", flags=[*flags, *more], within_s=120)

    with start("--decode-path", "general") as served:
        general, paths = asyncio.run(load(served, prompts, quiet_s))
    yield row("alone, general path", general, paths, [general])
    with start() as served:
        alone, paths = asyncio.run(load(served, prompts, quiet_s))
        references = [alone, general]
        yield row("alone", alone, paths, references)
        with neighbour(seconds + 2) as other:
            answers, paths = asyncio.run(load(served, prompts, seconds))
            rate = products_per_s(other)
        yield row("neighbour started after the server", answers, paths, references, rate)
        time.sleep(12)
        answers, paths = asyncio.run(load(served, prompts, quiet_s))
        yield row("neighbour gone", answers, paths, references)
    with neighbour(seconds + 20) as other, start() as served:
        answers, paths = asyncio.run(load(served, prompts, seconds))
        rate = products_per_s(other)
    yield row("neighbour started before the server", answers, paths, references, rate)


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="llama-3.2-3b")
    parser.add_argument("--checkpoint", type=Path, required=True, help="written if it is not there")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each disturbed phase")
    parser.add_argument("--mps", action="store_true", help="share the GPU through MPS")
    options = parser.parse_args()
    if not is_written(options.shape, options.checkpoint):
        write_checkpoint(options.shape, options.checkpoint, lambda done, total: None)
    rows = []
    flags = ["--max-context", "4096", "--max-concurrent", "32", "--memory-fraction", "0.5"]
    with mps_server() if options.mps else contextlib.nullcontext():
        for measured in measure(options.checkpoint, options.seconds, flags):
            rows.append(measured)
            print(json.dumps(measured), flush=True)
    shared = "MPS" if options.mps else "time slices"
    content = {"shape": options.shape, "requests_per_s": RATE, "shared_by": shared, "rows": rows}
    options.record.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
