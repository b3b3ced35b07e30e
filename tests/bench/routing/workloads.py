"""Workloads of the routing benchmark: conversations whose histories grow, and single prompts."""

from __future__ import annotations

import random
from dataclasses import dataclass

WORDS = [
    "the",
    "file",
    "function",
    "returns",
    "a",
    "list",
    "of",
    "errors",
    "when",
    "server",
    "token",
    "cache",
    "prompt",
    "agent",
    "tool",
    "call",
    "value",
    "is",
    "not",
    "found",
    "in",
    "table",
    "row",
    "column",
    "index",
    "path",
    "read",
    "write",
    "test",
    "line",
    "output",
    "result",
    "model",
    "step",
    "time",
    "queue",
    "retry",
    "and",
]


@dataclass(frozen=True)
class Workload:
    """Conversations of one kind.

    Args:
        clients: conversations at once; the next begins when one ends.
        conversations: all of them.
        turns: requests of one.
        shared_bytes: system prompt that all share.
        own_bytes: first message of each.
        turn_bytes: message of each further turn, such as a tool's output.
        answer_tokens: length of each answer.
        think_s: mean time between an answer and the next turn.
        has_session: True if clients name their session.
    """

    name: str
    clients: int
    conversations: int
    turns: int
    shared_bytes: int
    own_bytes: int
    turn_bytes: int
    answer_tokens: int
    think_s: float
    has_session: bool = False


class Texts:
    """Random texts of a workload, the same for each policy; conversation ``number`` has a seed of its own."""

    def __init__(self, workload: Workload, number: int) -> None:
        self._workload = workload
        self._random = random.Random(f"{workload.name} {number}")
        self.messages: list[dict[str, str]] = []
        if workload.shared_bytes:
            shared = text(random.Random(workload.name), workload.shared_bytes)
            self.messages.append({"role": "system", "content": shared})
        self._say(workload.own_bytes)

    def add_answer(self, answer: str) -> float:
        """Append an answer and the next message; return the time before it is sent."""
        self.messages.append({"role": "assistant", "content": answer})
        self._say(self._workload.turn_bytes)
        return self._random.expovariate(1 / self._workload.think_s) if self._workload.think_s else 0.0

    def _say(self, size_bytes: int) -> None:
        length = round(size_bytes * self._random.uniform(0.5, 1.5))
        self.messages.append({"role": "user", "content": text(self._random, length)})


def text(source: random.Random, size_bytes: int) -> str:
    """Return random words of so many bytes."""
    words = source.choices(WORDS, k=size_bytes // 4 + 1)
    return " ".join(words)[:size_bytes]
