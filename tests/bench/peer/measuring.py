"""Measurements of one OpenAI server: a request alone, equal streams side by side, arrivals, prompts at once.

The same for every server. Rows are kept as they come, so that a call that is cut short leaves its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servers import HOST, MODEL, Server

CLI = [sys.executable, "-c", "from wisp_runtime.cli.main import main; main()"]


@dataclass(frozen=True)
class Sizes:
    """What is measured of each server."""

    shape: str = "llama-3-8b"
    device: str = "cuda"
    alone: str = "128,512,2048,7900"
    clients: str = "1,8,32,64"
    prompt: int = 512
    tokens: int = 256
    rates: str = "5,15,30,40"
    seconds: float = 10.0
    burst: str = "400"
    lengths: tuple[str, ...] = ()
    vocab: int = 100_000
    prompts: tuple[int, int] = (32, 2048)


DRY = Sizes(
    "toy",
    "cpu",
    "16,32",
    "1,2",
    16,
    24,
    "5,10",
    1.0,
    "12",
    ("--prompt-tokens", "20", "--output-tokens", "8"),
    256,
    (3, 40),
)


@dataclass(frozen=True)
class Clock:
    """Limit of a call."""

    limit_s: float
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds until the limit."""
        return self.limit_s - (time.monotonic() - self.began_s)

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        print(f"[{time.monotonic() - self.began_s:6.1f} s] {text}", flush=True)


@dataclass
class Measurement:
    """Rows of one record, measured of several servers.

    Attributes:
        name: name of the record.
        note: conditions, for its readers.
        command: command line in the record.
        weights: format of the projections in the rows.
    """

    name: str
    note: str
    command: list[str]
    sizes: Sizes
    clock: Clock
    work: Path
    out: Path
    commit: str
    weights: str = "bf16"
    rows: list[dict[str, Any]] = field(default_factory=list)

    def alone(self, server: Server, repeats: int) -> None:
        """Measure the first token of requests one at a time."""
        first = ["--alone", self.sizes.alone, "--output-tokens", "8", "--repeats", str(repeats)]
        self.load(server, first, 30.0, "first_token_alone")

    def decode_alone(self, server: Server) -> None:
        """Measure a long answer, three times."""
        sizes = self.sizes
        decode = ["--alone", str(sizes.prompt), "--output-tokens", str(sizes.tokens), "--repeats", "3"]
        self.load(server, decode, 30.0, "decode_alone")

    def arrivals(self, server: Server) -> None:
        """Measure Poisson arrivals and a burst."""
        sizes = self.sizes
        flags = ["--rates", sizes.rates, "--seconds", str(sizes.seconds), "--burst", sizes.burst]
        self.load(server, [*flags, *sizes.lengths], 90.0)

    def prompts_at_once(self, server: Server) -> None:
        """Measure the prompt tokens a second of equal prompts that arrive at once."""
        count, length = self.sizes.prompts
        flags = ["--burst", str(count), "--prompt-tokens", str(length), "--output-tokens", "2"]
        for row in self._load_rows(server, [*flags, "--spread", "0"], 40.0):
            path = "general" if server.command.name == "wisp" else server.command.name
            value = round(row["output_tokens_per_s"] * count * length / row["output_tokens"])
            sizes = {"kv": "bf16", "batch": count, "context": length, "value": value}
            self.rows.append(row | {"metric": "served_prompt_tokens_per_s", "path": path} | sizes)
        self.keep()

    def load(self, server: Server, flags: list[str], limit_s: float, metric: str = "load") -> None:
        """Measure a server with ``wisp-runtime bench load``."""
        self.rows += [row | {"metric": metric} for row in self._load_rows(server, flags, limit_s)]
        self.keep()

    def _load_rows(self, server: Server, flags: list[str], limit_s: float) -> Iterator[dict[str, Any]]:
        at = ["--url", f"http://{HOST}:{server.command.port}", "--model", MODEL]
        at += ["--vocab", str(self.sizes.vocab), "--server", server.command.name]
        for row in self._bench("load", [*at, *flags], limit_s):
            yield {**row, "shape": self.sizes.shape, "weights": self.weights}

    def streams(self, server: Server) -> None:
        """Measure the gap between tokens of concurrent streams in steady state."""
        from wisp_runtime.bench.serving.start import row_maker

        sizes, state = self.sizes, server.state()
        strategy = row_maker(sizes.shape, sizes.device, state)
        flags = ["--url", f"{HOST}:{server.command.port}/{MODEL}", "--shape", sizes.shape]
        flags += ["--clients", sizes.clients, "--prompt", str(sizes.prompt), "--tokens", str(sizes.tokens)]
        for row in self._bench("serving", [*flags, "--device", sizes.device], 60.0):
            is_ours = bool(state.get("kernels"))
            made = strategy("path", 0.0, batch=row["batch"], context=row["context"])
            path = made.path if is_ours else server.command.name
            more = {"path": path, "weights": self.weights, "server": server.command.name}
            self.rows.append({**row, **more})
        self.keep()

    def _bench(self, benchmark: str, flags: list[str], limit_s: float) -> Iterator[dict[str, Any]]:
        """Run a benchmark command, its lines printed as they come, and yield the rows of its record."""
        record = self.work / "record.json"
        record.unlink(missing_ok=True)
        limit_s = max(1.0, min(limit_s, self.clock.left_s))
        command = ["timeout", f"{limit_s:.0f}", *CLI, "bench", benchmark, *flags, "--json", str(record)]
        done = subprocess.run(command, check=False)
        if done.returncode:
            self.clock.say(f"bench {benchmark} ended with status {done.returncode}")
        if record.is_file():
            yield from json.loads(record.read_text())["rows"]

    def keep(self) -> None:
        """Write the record of all rows so far."""
        from wisp_runtime.bench.record import make_record, write_record

        rows = [Kept(row) for row in self.rows]
        made = make_record(self.name, rows, device=self.sizes.device, command=self.command,
                           commit=self.commit)  # fmt: skip
        made["note"] = self.note
        write_record(self.out / f"{self.name}.json", made)


@dataclass(frozen=True)
class Kept:
    """A row that is JSON already."""

    row: dict[str, Any]

    def to_dict(self) -> dict[str, object]:
        """Return it."""
        return self.row


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the results once more, a line each, as the end of the output."""
    for row in rows:
        name = f"{row.get('server', row.get('path')):20} {row['weights']:9} {row['metric']:22}"
        if "value" in row:
            yield f"{name} batch {row['batch']:<4} median {row['value']} mean {row.get('mean', '')}"
        else:
            first, each = row.get("first_token_ms") or {}, row.get("time_per_token_ms") or {}
            spreads = " ".join(f"{key} {first.get(key)}/{each.get(key)}" for key in ("mean", "p50", "p99"))
            rate = f"{row['output_tokens_per_s']} tok/s"
            yield f"{name} {row['arrivals']:20} {row['failed']} failed  {spreads}  {rate}"
