"""Mutated requests against the real server: answers, leaks and memory.

    python tests/bench/fuzz/fuzz.py --count 1000000 --record tests/bench/records/fuzz.json

Every answer must be right or an error of its dialect, none a 5xx other than a documented 503; at the end no
block is held, no sequence waits or runs, and threads, files and memory are what they were.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from connection import Answer, Connection
from mutations import Case, case_of
from tally import Sample, Tally, write
from target import Footprint, Target, served

ANSWER_S = 120.0
MAX_STORED = 1000
MAX_FAULTS = 40
MAX_MORE_FILES = 8
MAX_MORE_THREADS = 48  # pools for texts, grammars and files fill up once


class Run:
    """Requests ``first`` to ``first + count``.

    Args:
        target: the server.
        seed: number from which the requests follow.
        count: number of requests.
        first: number of the first one.
        every: requests after which the server's processes are measured.
        limit_s: time after which no more are sent.
    """

    def __init__(
        self,
        target: Target,
        seed: int,
        count: int,
        *,
        first: int = 0,
        every: int = 50_000,
        limit_s: float = math.inf,
    ) -> None:
        self.target, self.tally, self.sent = target, Tally(), 0
        self._seed, self._indexes, self._every = seed, iter(range(first, first + count)), every
        self._began_s, self._limit_s = time.monotonic(), limit_s

    async def go(self, connections: int) -> Tally:
        """Send the requests on so many connections; return the counts."""
        self._measure()
        await asyncio.gather(*(self._work() for _ in range(connections)))
        if self.sent != self.tally.samples[-1].requests:
            self._measure()
        return self.tally

    async def _work(self) -> None:
        connection: Connection | None = None
        for index in self._indexes:
            case = case_of(self._seed, index, self.tally.identity(index))
            try:
                connection, answer = await asyncio.wait_for(self._ask(connection, case), ANSWER_S)
            except (TimeoutError, OSError) as error:
                self.tally.fail(index, case, repr(error))
                connection = None
            else:
                self.tally.add(index, case, answer)
            self.sent += 1
            if self.sent % self._every == 0:
                self._measure()
            if self._is_over():
                break
        if connection is not None:
            connection.leave()

    def _is_over(self) -> bool:
        is_late = time.monotonic() - self._began_s > self._limit_s
        return is_late or len(self.tally.faults) > MAX_FAULTS or self.target.process.poll() is not None

    async def _ask(self, connection: Connection | None, case: Case) -> tuple[Connection, Answer]:
        """Send a request; again on a new connection if the server had closed the old one between requests."""
        if connection is not None and connection.is_usable:
            answer = await connection.ask(case)
            if answer.is_complete or answer.body or case.stage != "stays":
                return connection, answer
            self.tally.reconnects += 1
        connection = await Connection.open(self.target.port)
        return connection, await connection.ask(case)

    def _measure(self) -> None:
        sample = Sample(self.sent, time.monotonic() - self._began_s, self.target.footprint())
        self.tally.samples.append(sample)
        print(f"{len(self.tally.faults)} faults, {sample}", file=sys.stderr, flush=True)


async def stored(target: Target, identities: list[str]) -> int:
    """Return how many of the responses are stored."""
    connection, count = await Connection.open(target.port), 0
    for identity in identities:
        head = f"GET /v1/responses/{identity} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        count += (await connection.ask(Case("", "GET", head, b""))).status == 200
    return count


def leaks(target: Target, tally: Tally, before: Footprint) -> list[str]:
    """Return what a server still holds whose requests are over."""
    if target.process.poll() is not None:
        return [f"the server ended: {target.log.read_text(errors='replace')[-4000:]}"]
    load = target.wait_until_idle()
    held = [f"{name}: {load[name]}" for name in ("waiting", "running", "kvBlocksUsed") if load[name]]
    count = asyncio.run(stored(target, [*tally.identities]))
    held += [f"stored responses: {count}"] * (count > MAX_STORED)
    after = target.settled_footprint(before.files + MAX_MORE_FILES)
    held += [f"files: {before.files}, then {after.files}"] * (after.files > before.files + MAX_MORE_FILES)
    has_more = after.threads > before.threads + MAX_MORE_THREADS
    held += [f"threads: {before.threads}, then {after.threads}"] * has_more
    text = target.log.read_text(errors="replace")
    held += [f"a traceback in the log: {text[-4000:]}"] * ("Traceback" in text or "bug of ours" in text)
    return held


def main() -> int:
    """Run the fuzzer; return 1 if it finds anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--every", type=int, default=50_000, help="requests between two measurements")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time after which no more are sent")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as target:
        before = target.footprint()
        run = Run(
            *(target, options.seed, options.count),
            first=options.first,
            every=options.every,
            limit_s=options.minutes * 60,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            tally = runner.run(run.go(options.connections))
        wrong = tally.faults + leaks(target, tally, before)
    write("fuzz", tally.rows(), options.record)
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
