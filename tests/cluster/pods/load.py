"""A steady load from inside the cluster, every request accounted for.

    python3 load.py URL MODEL[,MODEL…] RATE [TOKENS [new]]

Streaming and plain requests in turn, to the models in turn, sent when they are due whether or not earlier
ones were answered. The rate is read again and again from RATE_FILE (/tmp/rate; requests a second, or "stop");
then a JSON report is printed. Clients are one pool of kept-alive connections, which get no information about
the cluster; with ``new`` each request has a connection of its own.

A request is *answered* whole; *retried*: the connection ended before any byte, and one of the two retries
that the official SDKs make was answered; *refused*: 429 or 503 with Retry-After; *error*: another OpenAI
error, as a status or as an event of a stream; *cut*: its connection ended within the answer; or *lost*: no
answer in PATIENCE_S (90), no connection in three tries, or an answer that is wrong.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import aiohttp

RATE = Path(os.environ.get("RATE_FILE", "/tmp/rate"))
TOKENS = 24
PATIENCE_S = float(os.environ.get("PATIENCE_S", "90"))
EXAMPLES = 4  # of each trouble, in words
# What the official SDKs do when a connection ends before any byte of an answer: twice, after 0.5 s and 1 s.
RETRIES_S = (0.5, 1.0)
OUTCOMES = ("answered", "retried", "refused", "error", "cut", "lost")
PROMPTS = tuple(f"Prompt number {n} of a few." for n in range(8))


class Ended(Exception):
    """A request that was not answered whole.

    Attributes:
        outcome: one of OUTCOMES.
        label: HTTP status and code of the error, or what went wrong.
    """

    def __init__(self, outcome, label, text=""):
        super().__init__(f"{outcome}: {label} {text}".strip())
        self.outcome, self.label = outcome, label


class CutBeforeAnswer(Exception):
    """The connection ended, or could not be made, before any byte of an answer came."""


class Load:
    """All requests so far, and their outcomes."""

    def __init__(self, url, models, tokens=TOKENS, is_new=False):
        self.url, self.models, self.tokens, self.is_new = url, models.split(","), tokens, is_new
        self.counts = dict.fromkeys(("sent", "streams", *OUTCOMES), 0)
        self.seconds, self.troubles, self.texts, self.labels = [], [], {}, {}
        self.first_token_s = []

    async def run(self):
        """Send requests at the rate in the file, until the file says stop and every request has ended."""
        due, running = time.monotonic(), set()
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        connector = aiohttp.TCPConnector(limit=0, force_close=self.is_new)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
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
        is_stream, began = number % 2 == 0, time.time()
        model = self.models[number // 2 % len(self.models)]
        self.counts["streams"] += is_stream
        try:
            outcome = await self.with_retries(session, number, model, is_stream)
        except Ended as ended:
            outcome = ended.outcome
            if self.note(model, ended.label, began) <= EXAMPLES:
                self.troubles.append(f"{number} ({'stream' if is_stream else 'plain'}) to {model}: {ended}")
        self.counts[outcome] += 1
        self.seconds.append(time.time() - began)

    def note(self, model, label, began):
        """Count a trouble, with the Unix seconds of the first and the last request that had it; its count."""
        seen = self.labels.setdefault(model, {}).setdefault(
            label, {"count": 0, "first": began, "last": began}
        )
        seen["count"] += 1
        seen["first"], seen["last"] = min(seen["first"], began), max(seen["last"], began)
        return seen["count"]

    async def with_retries(self, session, number, model, is_stream):
        """Ask as the official SDKs do: again if the connection ended before any byte of an answer."""
        for wait_s in (*RETRIES_S, None):
            try:
                await self.ask(session, number, model, is_stream)
            except CutBeforeAnswer as cut:
                if wait_s is None:
                    raise Ended("lost", "unreachable", str(cut)) from cut
                await asyncio.sleep(wait_s)
            else:
                return "answered" if wait_s == RETRIES_S[0] else "retried"
        raise AssertionError("unreachable")

    async def ask(self, session, number, model, is_stream):
        """Ask once; raise unless the answer is whole."""
        prompt = PROMPTS[number // 2 % len(PROMPTS)]
        messages = [{"role": "user", "content": prompt}]
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": self.tokens,
            "temperature": 0,
            "stream": is_stream,
        }
        began = time.monotonic()
        try:
            answer = await session.post(f"{self.url}/v1/chat/completions", json=body)
        except TimeoutError as error:
            raise Ended("lost", "no answer", f"within {PATIENCE_S:g} s") from error
        except aiohttp.ClientError as error:
            raise CutBeforeAnswer(f"{type(error).__name__}: {error}") from error
        async with answer:
            try:
                await self.verify(answer, prompt, is_stream, began)
            except TimeoutError as error:
                raise Ended("lost", "no end", f"of a {answer.status} within {PATIENCE_S:g} s") from error
            except aiohttp.ClientError as error:
                raise Ended("cut", f"within {answer.status}", f"{type(error).__name__}: {error}") from error
            except ValueError as error:
                raise Ended("lost", f"{answer.status} without JSON", str(error)) from error

    async def verify(self, answer, prompt, is_stream, began):
        """Read an answer to its end, and raise unless it is complete and the text is that of before."""
        if answer.status != 200:
            error = json.loads(await answer.read())["error"]
            may_come_back = answer.status in (429, 503) and "Retry-After" in answer.headers
            outcome = "refused" if may_come_back else "error"
            raise Ended(outcome, f"{answer.status} {error['code']}", error["message"][:200])
        if is_stream:
            text, first = await streamed(answer)
            self.first_token_s.append(first - began)
        else:
            text = await plain(answer, self.tokens)
        if text != self.texts.setdefault(prompt, text):
            raise Ended("lost", "another text", f"than before: {text!r}, not {self.texts[prompt]!r}")

    def report(self):
        """Counts, waiting times, and errors in words."""
        times = {"seconds": quantiles(self.seconds), "firstToken": quantiles(self.first_token_s)}
        return {**self.counts, **times, "labels": self.labels, "troubles": self.troubles}


QUANTILES = {"p50": 0.5, "p99": 0.99, "most": 1.0}


def quantiles(values):
    """Median, 99th percentile and maximum of some seconds."""
    ordered = sorted(values) or [0.0]
    return {name: round(ordered[int(share * (len(ordered) - 1))], 3) for name, share in QUANTILES.items()}


async def plain(answer, tokens):
    """The text of an answer that is not streamed."""
    found = json.loads(await answer.read())
    if found["usage"]["completion_tokens"] != tokens:
        raise Ended("lost", "short answer", f"{found['usage']} instead of {tokens} tokens")
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
            raise Ended("error", f"event {event['error']['code']}", event["error"]["message"][:200])
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            first = first or (time.monotonic() if text else 0.0)
            ended = ended or choice["finish_reason"] == "length"
    if not (ended and done):
        raise Ended("cut", "stream without its end", f"after {len(text)} characters")
    return text, first or time.monotonic()


if __name__ == "__main__":
    RATE.write_text(sys.argv[3])
    load = Load(*sys.argv[1:3], *map(int, sys.argv[4:5]), is_new="new" in sys.argv[5:])
    asyncio.run(load.run())
    print(json.dumps(load.report()), flush=True)
