"""A steady load on one model from inside the cluster, every request accounted for.

    python3 load.py URL MODEL RATE [TOKENS]

Streaming and plain requests in turn, sent when they are due whether or not earlier ones were answered. The
rate is read again and again from /tmp/rate (requests a second, or "stop"); then a JSON report is printed.
Clients are one pool of kept-alive connections, which get no information about the cluster.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import aiohttp

RATE = Path("/tmp/rate")
TOKENS = 24
PATIENCE_S = 90
# What the official SDKs do when a connection ends before any byte of an answer: twice, after 0.5 s and 1 s.
RETRIES_S = (0.5, 1.0)
PROMPTS = tuple(f"Prompt number {n} of a few." for n in range(8))


class Lost(Exception):
    """Neither answered completely, nor refused with a time to come back."""


class CutBeforeAnswer(Exception):
    """The connection ended, or could not be made, before any byte of an answer came."""


class Load:
    """All requests so far, and their outcomes."""

    def __init__(self, url, model, tokens=TOKENS):
        self.url, self.model, self.tokens = url, model, tokens
        self.counts = dict.fromkeys(("sent", "streams", "answered", "retried", "refused", "lost"), 0)
        self.seconds, self.troubles, self.texts = [], [], {}
        self.first_token_s = []

    async def run(self):
        """Send requests at the rate in the file, until the file says stop and every request has ended."""
        due, running = time.monotonic(), set()
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            while (rate := RATE.read_text().strip()) != "stop":
                if float(rate or 0) <= 0 or time.monotonic() < due:
                    due = max(due, time.monotonic() - 1) if float(rate or 0) > 0 else time.monotonic()
                    await asyncio.sleep(0.005)
                    continue
                due += 1 / float(rate)
                task = asyncio.create_task(self.one(session, self.counts["sent"]))
                self.counts["sent"] += 1
                running.add(task)
                task.add_done_callback(running.discard)
            if running:
                await asyncio.wait(running)

    async def one(self, session, number):
        """Send one request, and count its outcome."""
        is_stream, began = number % 2 == 0, time.monotonic()
        self.counts["streams"] += is_stream
        try:
            outcome = await self.with_retries(session, number, is_stream)
        except Lost as why:
            outcome = "lost"
            self.troubles.append(f"{number} ({'stream' if is_stream else 'plain'}): {why}")
        self.counts[outcome] += 1
        self.seconds.append(time.monotonic() - began)

    async def with_retries(self, session, number, is_stream):
        """Ask as the official SDKs do: again if the connection ended before any byte of an answer."""
        for wait_s in (*RETRIES_S, None):
            try:
                outcome = await self.ask(session, number, is_stream)
            except CutBeforeAnswer as cut:
                self.troubles.append(f"{number}: cut before any byte: {cut}")
                if wait_s is None:
                    raise Lost(f"cut before any byte, three times: {cut}") from cut
                await asyncio.sleep(wait_s)
            else:
                return "retried" if outcome == "answered" and wait_s != RETRIES_S[0] else outcome
        raise AssertionError("unreachable")

    async def ask(self, session, number, is_stream):
        """Ask once: ``answered`` or ``refused``, or raise."""
        prompt = PROMPTS[number // 2 % len(PROMPTS)]
        messages = [{"role": "user", "content": prompt}]
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": self.tokens,
            "temperature": 0,
            "stream": is_stream,
        }
        began = time.monotonic()
        try:
            answer = await session.post(f"{self.url}/v1/chat/completions", json=body)
        except TimeoutError as error:
            raise Lost(f"no answer within {PATIENCE_S} s") from error
        except aiohttp.ClientError as error:
            raise CutBeforeAnswer(f"{type(error).__name__}: {error}") from error
        async with answer:
            try:
                return await self.verify(answer, prompt, is_stream, began)
            except (TimeoutError, aiohttp.ClientError, ValueError) as error:
                raise Lost(f"broken off after {answer.status}: {type(error).__name__}: {error}") from error

    async def verify(self, answer, prompt, is_stream, began):
        """Read an answer to its end, and check that it is complete."""
        if answer.status in (429, 503) and "Retry-After" in answer.headers:
            refusal = json.loads(await answer.read())["error"]
            self.troubles.append(f"refused: {answer.status} {refusal['code']}")
            return "refused"
        if answer.status != 200:
            raise Lost(f"{answer.status} {(await answer.text())[:300]}")
        if is_stream:
            text, first = await streamed(answer)
            self.first_token_s.append(first - began)
        else:
            text = await plain(answer, self.tokens)
        if text != self.texts.setdefault(prompt, text):
            raise Lost(f"another text than before: {text!r}, not {self.texts[prompt]!r}")
        return "answered"

    def report(self):
        """Counts, waiting times, and errors in words."""
        times = {"seconds": quantiles(self.seconds), "firstToken": quantiles(self.first_token_s)}
        return {**self.counts, **times, "troubles": self.troubles[:40]}


QUANTILES = {"p50": 0.5, "p99": 0.99, "most": 1.0}


def quantiles(values):
    """Median, 99th percentile and maximum of some seconds."""
    ordered = sorted(values) or [0.0]
    return {name: round(ordered[int(share * (len(ordered) - 1))], 3) for name, share in QUANTILES.items()}


async def plain(answer, tokens):
    """The text of an answer that is not streamed."""
    found = json.loads(await answer.read())
    if found["usage"]["completion_tokens"] != tokens:
        raise Lost(f"{found['usage']} instead of {tokens} tokens")
    return found["choices"][0]["message"]["content"]


async def streamed(answer):
    """The text of a stream, which must end as it should, and the time of its first token."""
    text, ended, done, first = "", False, False, 0.0
    async for line in answer.content:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            done = True
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise Lost(f"an error in the stream: {event['error']}")
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            first = first or (time.monotonic() if text else 0.0)
            ended = ended or choice["finish_reason"] == "length"
    if not (ended and done):
        raise Lost(f"a stream without its end, after {len(text)} characters")
    return text, first or time.monotonic()


if __name__ == "__main__":
    RATE.write_text(sys.argv[3])
    load = Load(*sys.argv[1:3], *map(int, sys.argv[4:5]))
    asyncio.run(load.run())
    print(json.dumps(load.report()), flush=True)
