"""Discrete simulation of pods behind the gateway's own routing state: its queue, its records, its choice.

A pod computes prompts in chunks beside a token of each sequence, and keeps blocks of prompts, least recently
used out first. Times are of a cost model, so a simulation compares policies; it publishes no time.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from workloads import Texts, Workload, text

from wisp_gateway.discovery.snapshot import ColdStart, Endpoint, Model
from wisp_gateway.inbound.prompt_text import prompt_text, session_name
from wisp_gateway.inbound.request_body import parse
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.prompt import Prompt, prompt_of, session_of
from wisp_gateway.routing.registry import Slot
from wisp_gateway.routing.request_queue import QueuedRequest

BYTES_PER_TOKEN = 4
BLOCK_TOKENS = 64


@dataclass(frozen=True)
class Costs:
    """Cost model of a pod.

    Args:
        step_s: time of a step that decodes nothing.
        sequence_s: time that each decoding sequence adds.
        prompt_token_s: time that each token of a prompt adds.
        chunk_tokens: tokens of prompts in one step.
        cache_tokens: KV cache.
    """

    step_s: float
    sequence_s: float
    prompt_token_s: float
    chunk_tokens: int
    cache_tokens: int


# An 8B on an H200, by docs/performance.md.
GPU = Costs(0.0038, 0.00005, 1 / 44_000, 2048, 400_000)


@dataclass(eq=False)
class Call:
    """One request on its way."""

    prompt: Prompt
    blocks: tuple[int, ...]
    answer_tokens: int
    entered_s: float
    on_done: Callable[[float], None]
    slot: Slot | None = None
    left_tokens: int = 0  # of the prompt
    cached_tokens: int = 0
    first_s: float | None = None
    made_tokens: int = 0


class Pod:
    """A simulated pod."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.cache: OrderedDict[int, None] = OrderedDict()
        self.calls: list[Call] = []
        self.is_stepping = False
        self.prompt_tokens = self.cached_tokens = self.requests = 0
        self.busy_s = 0.0

    def start(self, call: Call) -> None:
        """Take a request: look up its prefix, compute the rest later."""
        hits = 0
        while hits < len(call.blocks) and call.blocks[hits] in self.cache:
            hits += 1
        tokens = call.prompt.size_bytes // BYTES_PER_TOKEN
        call.cached_tokens = min(hits * BLOCK_TOKENS, tokens - 1)
        call.left_tokens = tokens - call.cached_tokens
        self._keep(call.blocks[:hits])
        self.prompt_tokens += tokens
        self.cached_tokens += call.cached_tokens
        self.requests += 1
        self.calls.append(call)

    def step(self) -> tuple[float, list[Call], list[Call]]:
        """Run a step: its time, the calls with a first token, and those that end."""
        costs, left = self.costs, self.costs.chunk_tokens
        first, ended, decoding = [], [], 0
        for call in self.calls:
            if call.left_tokens:
                computed = min(left, call.left_tokens)
                left -= computed
                call.left_tokens -= computed
                if call.left_tokens or not computed:
                    continue
                self._keep(call.blocks)
                first.append(call)
            else:
                decoding += 1
            call.made_tokens += 1
            if call.made_tokens >= call.answer_tokens:
                ended.append(call)
        self.calls = [call for call in self.calls if call not in ended]
        seconds = costs.step_s + costs.sequence_s * decoding
        seconds += costs.prompt_token_s * (costs.chunk_tokens - left)
        self.busy_s += seconds
        return seconds, first, ended

    def _keep(self, blocks: tuple[int, ...]) -> None:
        for block in reversed(blocks):
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) * BLOCK_TOKENS > self.costs.cache_tokens:
            self.cache.popitem(last=False)


@dataclass
class Result:
    """Measured values of one run."""

    first_s: list[float] = field(default_factory=list)
    total_s: float = 0.0
    answer_tokens: int = 0
    pods: list[Pod] = field(default_factory=list)


class Simulation:
    """One workload under one policy.

    Args:
        new_state: function of model, metrics and clock that returns the routing state.
    """

    def __init__(self, workload: Workload, costs: Costs, pods: int, limit: int, new_state, gateways: int = 1):
        self.workload, self.now_s = workload, 0.0
        self.pods = {f"pod-{index}": Pod(costs) for index in range(pods)}
        endpoints = tuple(Endpoint(name, f"{name}:1", ready=True, draining=False) for name in self.pods)
        model = Model(
            "ns", "m", "m", "Ready", cold_start=ColdStart("Hold", 1e9, 1, 10**6), endpoints=endpoints,
            routing=new_state.policy, target_concurrency=limit,
        )  # fmt: skip
        self.states = []
        for _ in range(gateways):
            state = new_state(model, Metrics(), lambda: self.now_s)
            state.replace(model)
            for pod in state.pods.values():
                pod.record.resize(costs.cache_tokens // gateways)
            self.states.append(state)
        self.random = random.Random(7)
        self.events: list = []
        self.order = itertools.count()
        self.result = Result(pods=list(self.pods.values()))
        self.conversations = iter(range(workload.conversations))

    def run(self) -> Result:
        """Run all conversations."""
        for index in range(self.workload.clients):
            self.at(index * 0.05 * self.workload.think_s, self.begin)
        while self.events:
            self.now_s, _, event = heapq.heappop(self.events)
            event()
        self.result.total_s = self.now_s
        return self.result

    def at(self, time_s: float, event: Callable[[], None]) -> None:
        """Call ``event`` at a time."""
        heapq.heappush(self.events, (time_s, next(self.order), event))

    def begin(self) -> None:
        """Begin the next conversation, if there is one."""
        number = next(self.conversations, None)
        if number is not None:
            texts = Texts(self.workload, number)
            self.ask(number, texts, self.workload.turns)

    def ask(self, number: int, texts: Texts, turns: int) -> None:
        """Send a request; the next turn follows its answer."""
        raw = json.dumps({"model": "m", "messages": texts.messages}, separators=(",", ":")).encode()
        body = parse(raw)
        canonical = prompt_text(body)
        name = f"s{number}" if self.workload.has_session else session_name(lambda _: "", body)
        prompt = prompt_of(
            canonical.parts, prefix=canonical.prefix, session=session_of("a", name) if name else None
        )
        blocks, before, size = [], 0, BLOCK_TOKENS * BYTES_PER_TOKEN
        joined = b"".join(canonical.parts)
        for start in range(0, len(joined) - size + 1, size):
            before = hash((before, joined[start : start + size]))
            blocks.append(before)

        def done() -> None:
            if turns == 1:
                self.begin()
                return
            answer = text(texts._random, self.workload.answer_tokens * BYTES_PER_TOKEN)
            delay_s = texts.add_answer(answer)
            self.at(self.now_s + delay_s, lambda: self.ask(number, texts, turns - 1))

        call = Call(prompt, tuple(blocks), self.workload.answer_tokens, self.now_s, done)
        state = self.random.choice(self.states)
        request = QueuedRequest(
            prompt, self.now_s, 1e12, lambda pod: self.start(state, call, pod), account=str(number)
        )
        state.admit(request)

    def start(self, state: ModelState, call: Call, pod_id: str) -> None:
        """Give a call to the pod that was chosen."""
        call.slot = Slot(state, state.pods[pod_id], 1, call.prompt if state.wants_prompts else None)
        pod = self.pods[pod_id]
        pod.start(call)
        if not pod.is_stepping:
            pod.is_stepping = True
            self.step(pod)

    def step(self, pod: Pod) -> None:
        """Run steps of a pod while it has calls."""
        if not pod.calls:
            pod.is_stepping = False
            return
        seconds, first, ended = pod.step()

        def after() -> None:
            for call in first:
                call.slot.prompt_computed()
                self.result.first_s.append(self.now_s - call.entered_s)
            for call in ended:
                self.result.answer_tokens += call.made_tokens
                call.slot.release()
                call.on_done()
            self.step(pod)

        self.at(self.now_s + seconds, after)
