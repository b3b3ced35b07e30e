"""The neighbours: a process that streams, asks and probes for ever, and reports on demand.

    python watcher.py '{"streams": […], "answers": […], "probes": […]}'

A line ``settled`` on standard input: wait until every neighbour has had an answer, forget the past, report.
A line ``report``: report the time since the last report, gaps that are still open included.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import aiohttp

ANSWER_EVERY_S = 0.3
PROBE_EVERY_S = 0.2
SETTLED_S = 30.0
KEPT_FAILURES = 5
SPIN, SPIN_S, SPIN_PAUSE_S = "spin", 0.02, 0.2
# Part of an answer that differs from request to request.
VOLATILE = ("id", "created", "metrics", "timings")


class Stream:
    """One request streamed again and again; a GET, where it has no body, of which each answer counts."""

    def __init__(self, session: aiohttp.ClientSession, request: dict[str, Any]) -> None:
        self.session, self.request = session, request
        self.events = 0
        self.largest_s, self.failures = 0.0, list[str]()
        self._since: float | None = None

    async def run(self) -> None:
        """Stream for ever."""
        while True:
            self._since = time.monotonic()
            try:
                await self._stream()
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.1)
            self._since = None
            await asyncio.sleep(self.request.get("pause_s", 0.0))

    async def _stream(self) -> None:
        if "body" not in self.request:
            await self._get()
            return
        async with self.session.post(
            self.request["url"], json=self.request["body"], headers=self.request.get("headers", {})
        ) as answer:
            if answer.status != 200:
                self.failures.append(f"status {answer.status}: {(await answer.text())[:200]}")
                await asyncio.sleep(0.1)
                return
            is_done = False
            async for line in answer.content:
                if line.startswith(b"data:"):
                    self._count()
                    is_done = is_done or line.strip() == b"data: [DONE]"
                    if b'"error"' in line:
                        self.failures.append(f"an error event: {line[:200]!r}")
            if not is_done:
                self.failures.append("a stream without its end")

    async def _get(self) -> None:
        async with self.session.get(self.request["url"]) as answer:
            await answer.read()
            self._count()

    def _count(self) -> None:
        now = time.monotonic()
        self.largest_s = max(self.largest_s, now - (self._since or now))
        self._since, self.events = now, self.events + 1

    def report(self) -> dict[str, Any]:
        """Report and forget."""
        now = time.monotonic()
        gap_s = max(self.largest_s, now - (self._since or now))
        document = {"gap_s": gap_s, "events": self.events, "failures": self.failures[:KEPT_FAILURES]}
        self.largest_s, self.events, self.failures = 0.0, 0, []
        if self._since is not None:
            self._since = now
        return document


class Spinner:
    """A process that computes for a moment now and then; ``stretch`` is how much longer that took."""

    def __init__(self) -> None:
        self._worked_s, self._took_s = 0.0, 0.0

    async def run(self) -> None:
        """Compute for ever, in a process of its own."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, SPIN, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                worked_s, took_s = map(float, line.split())
                self._worked_s, self._took_s = self._worked_s + worked_s, self._took_s + took_s
        finally:
            process.kill()

    def report(self) -> float:
        """Report and forget: wall time a second of CPU time, at least 1."""
        stretch = self._took_s / self._worked_s if self._worked_s else 1.0
        self._worked_s = self._took_s = 0.0
        return max(1.0, stretch)


def spin() -> None:
    """Print CPU time and wall time of a moment's work, again and again."""
    while True:
        wall_s, cpu_s = time.monotonic(), time.process_time()
        while (worked_s := time.process_time() - cpu_s) < SPIN_S:
            pass
        print(worked_s, time.monotonic() - wall_s, flush=True)
        time.sleep(SPIN_PAUSE_S)


class Answers:
    """Requests whose answers must not change."""

    def __init__(self, session: aiohttp.ClientSession, requests: list[dict[str, Any]]) -> None:
        self.session, self.requests = session, requests
        self.count, self.failures = 0, list[str]()
        self._first: dict[str, str] = {}

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            for request in self.requests:
                await self._ask(request)
            self.count += 1
            await asyncio.sleep(ANSWER_EVERY_S)

    async def _ask(self, request: dict[str, Any]) -> None:
        name = request["name"]
        try:
            async with self.session.request(
                "POST" if "body" in request else "GET",
                request["url"],
                json=request.get("body"),
                headers=request.get("headers", {}),
            ) as answer:
                text = f"{answer.status} {_without_volatile(await answer.text())}"
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
            return
        if text != self._first.setdefault(name, text):
            self.failures.append(f"{name}: {text[:200]}, not {self._first[name][:200]}")

    def report(self) -> dict[str, Any]:
        """Report and forget."""
        document = {"count": self.count, "failures": self.failures[:KEPT_FAILURES]}
        self.count, self.failures = 0, []
        return document


class Probes:
    """Probes, each on a connection of its own, as the kubelet's are; its timeout is the chart's."""

    def __init__(self, urls: list[str]) -> None:
        self.urls, self.count, self.failures = urls, 0, list[str]()

    async def run(self) -> None:
        """Probe for ever."""
        timeout = aiohttp.ClientTimeout(total=5)
        while True:
            for url in self.urls:
                connector = aiohttp.TCPConnector(force_close=True)
                try:
                    async with (
                        aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
                        session.get(url) as answer,
                    ):
                        if answer.status != 200:
                            self.failures.append(f"{url}: {answer.status} {(await answer.text())[:200]}")
                except (aiohttp.ClientError, TimeoutError) as error:
                    self.failures.append(f"{url}: {type(error).__name__}: {error}")
            self.count += 1
            await asyncio.sleep(PROBE_EVERY_S)

    def report(self) -> dict[str, Any]:
        """Report and forget."""
        document = {"count": self.count, "failures": self.failures[:KEPT_FAILURES]}
        self.count, self.failures = 0, []
        return document


def _without_volatile(text: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        return text
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if key not in VOLATILE}
    return json.dumps(document, sort_keys=True)


async def main(watch: dict[str, Any]) -> None:
    """Run the neighbours until standard input ends."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        streams = {request["name"]: Stream(session, request) for request in watch["streams"]}
        answers, probes, spinner = Answers(session, watch["answers"]), Probes(watch["probes"]), Spinner()
        tasks = [asyncio.create_task(part.run()) for part in (*streams.values(), answers, probes, spinner)]

        def report() -> dict[str, Any]:
            return {
                "streams": {name: stream.report() for name, stream in streams.items()},
                "answers": answers.report(),
                "probes": probes.report(),
                "stretch": spinner.report(),
            }

        def has_answers() -> bool:
            return bool(answers.count and probes.count) and all(s.events for s in streams.values())

        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            if line.strip() == "settled":
                report()
                deadline = time.monotonic() + SETTLED_S
                while not has_answers() and time.monotonic() < deadline:
                    await asyncio.sleep(0.02)
            print(json.dumps(report()), flush=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    if sys.argv[1] == SPIN:
        spin()
    else:
        asyncio.run(main(json.loads(sys.argv[1])))
