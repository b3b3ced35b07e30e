"""First tokens of strangers beside greedy requests, and gaps of streams under a mixed load.

    python tests/bench/bench_fairness.py simulated                   the scheduler alone, an H200's step times
    python tests/bench/bench_fairness.py cpu                         the engine on the CPU, small models
    python tests/bench/bench_fairness.py cuda --shape llama-3-8b     the engine on a GPU, random weights

Each writes its rows to ``--record`` (default: this folder's records). The engine's own loop runs in this
process, as it serves: only pipe and HTTP are missing. On the CPU it has one thread, and time is the
processor's, so that other processes do not count. A benchmark, not a test: it asserts no time.

- ``many``: one request with n = 128; meanwhile strangers with 20 tokens.
- ``long``: four prompts of 120,000 tokens; meanwhile strangers with 50 tokens.
- ``mixed``: eight streams; meanwhile prompts of 50 to 6,000 tokens, with and without a target per token; not
  on the CPU.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime/support"))
from simulated_gpu import Outcome, simulate

from wisp_plan.memory.cache import one_pool
from wisp_plan.presets import shape_spec
from wisp_runtime.bench.record import make_record, write_record
from wisp_runtime.bench.target import TargetOptions, open_target
from wisp_runtime.engine import loop
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.startup import context_work
from wisp_runtime.engine.transport.messages import Abort, SamplingParams, Shutdown, Submit
from wisp_runtime.engine.transport.wire import encode

RECORDS = Path(__file__).parent / "records"
GREEDY = SamplingParams(temperature=0.0)
Arrivals = list[tuple[float, Submit]]
Drive = Callable[[Limits, Arrivals, float], Outcome]
"""Serve arrivals under some limits until a time, and return what happened."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the loads, which differ by machine.

    Attributes:
        choices, choice_tokens: choices of the greedy request, and tokens of each.
        long, long_tokens: long prompts, and tokens of each.
        streams, prompts_per_s, prompt_tokens: streams and prompts of the mixed load; tokens of the longest.
        targets_s: targets per token.
        many_s, long_s, mixed_s: lengths of the runs.
        every_s: time between two strangers.
    """

    choices: int = 128
    choice_tokens: int = 4096
    long: int = 4
    long_tokens: int = 120_000
    streams: int = 8
    prompts_per_s: float = 8.0
    prompt_tokens: int = 6000
    targets_s: tuple[float | None, ...] = (None, 0.020)
    many_s: float = 8.0
    long_s: float = 60.0
    mixed_s: float = 25.0
    every_s: float = 1.0


WARM_UP_S = 3.0  # of the mixed load: graphs are captured, the cost model has not yet seen a step


def request(name: str, tokens: int, max_tokens: int, vocab: int, **fields: Any) -> Submit:
    """Make a request of random tokens, equal for an equal name."""
    prompt = tuple(random.Random(name).choices(range(vocab), k=tokens))
    return Submit(name, prompt, max_tokens, GREEDY, ignore_eos=True, **fields)


def strangers(until_s: float, every_s: float, tokens: int, vocab: int) -> Arrivals:
    """Make short requests, one after the other."""
    times = [every_s * (number + 0.5) for number in range(int(until_s / every_s))]
    return [(at_s, request(f"stranger-{number}", tokens, 8, vocab)) for number, at_s in enumerate(times)]


def many(sizes: Sizes, vocab: int) -> Arrivals:
    """Make the choices of one request."""
    first = request("many", 50, sizes.choice_tokens, vocab)
    return [(0.0, replace(first, request_id=f"many-{k}", choice=k)) for k in range(sizes.choices)]


def long(sizes: Sizes, vocab: int) -> Arrivals:
    """Make long prompts."""
    return [(0.0, request(f"long-{n}", sizes.long_tokens, 8, vocab)) for n in range(sizes.long)]


def mixed(sizes: Sizes, vocab: int) -> Arrivals:
    """Make streams, and prompts of all lengths that come at random."""
    rng, at_s = random.Random(7), 1.0
    arrivals = [(0.0, request(f"stream-{n}", 200, 1 << 14, vocab)) for n in range(sizes.streams)]
    while at_s < sizes.mixed_s:
        tokens = round(50 * (sizes.prompt_tokens / 50) ** rng.random())
        arrivals.append((at_s, request(f"prompt-{len(arrivals)}", tokens, rng.randint(2, 60), vocab)))
        at_s += rng.expovariate(sizes.prompts_per_s)
    return arrivals


def rows(drive: Drive, limits: Limits, sizes: Sizes, loads: str) -> Iterator[dict[str, object]]:
    """Run the loads, and yield rows of a record."""
    for name, load, until_s, tokens in (
        ("many", many, sizes.many_s, 20),
        ("long", long, sizes.long_s, 50),
    ):
        if name in loads:
            yield from _beside(drive, limits, load(sizes, limits.vocab), name, until_s, sizes.every_s, tokens)
    for target_s in sizes.targets_s if "mixed" in loads else ():
        outcome = drive(
            replace(limits, target_per_token_s=target_s), mixed(sizes, limits.vocab), sizes.mixed_s
        )
        yield from _gaps(outcome, target_s)


def _beside(
    drive: Drive, limits: Limits, greedy: Arrivals, name: str, until_s: float, every_s: float, tokens: int
) -> Iterator[dict[str, object]]:
    """Yield first tokens of strangers beside ``greedy``, and what these lose by them."""
    alone = drive(limits, greedy, until_s)
    comers = strangers(min(until_s, alone.end_s), every_s, tokens, limits.vocab)
    beside = drive(limits, sorted([*greedy, *comers], key=lambda arrival: arrival[0]), until_s)
    waits = [
        beside.first_s(each.request_id, at_s) for at_s, each in comers if beside.tokens_s[each.request_id]
    ]
    unanswered = len(comers) - len(waits)
    yield {
        "metric": "first_token_beside_s",
        "load": name,
        "value": max(waits),
        "median": sorted(waits)[len(waits) // 2],
        "strangers": len(comers),
        "unanswered": unanswered,
    }
    own_tokens = tokens * len(comers)
    share = _rate(beside, name, own_tokens) / _rate(alone, name, 0)
    yield {"metric": "others_throughput_ratio", "load": name, "value": share}


def _rate(outcome: Outcome, name: str, strangers_tokens: int) -> float:
    """Return tokens a second of the greedy requests: of prompts if these are long, else of answers."""
    if name == "long":
        return (outcome.prompt_tokens - strangers_tokens) / outcome.end_s
    return sum(len(times) for own, times in outcome.tokens_s.items() if own.startswith(name)) / outcome.end_s


def _gaps(outcome: Outcome, target_s: float | None) -> Iterator[dict[str, object]]:
    named = [of for name, of in outcome.tokens_s.items() if name.startswith("stream")]
    gaps = sorted(
        1e3 * (after - before) for of in named for before, after in pairwise(of) if before >= WARM_UP_S
    )
    target_ms = None if target_s is None else 1e3 * target_s
    shared = {"load": "mixed", "target_ms": target_ms, "gaps": len(gaps), "warm_up_s": WARM_UP_S}
    for metric, share in (("gap_p50_ms", 0.5), ("gap_p99_ms", 0.99), ("gap_most_ms", 1.0)):
        yield {"metric": metric, "value": gaps[int(share * (len(gaps) - 1))]} | shared
    firsts = sorted(of[0] for name, of in outcome.tokens_s.items() if name.startswith("prompt") and of)
    yield {"metric": "prompts_answered", "value": len(firsts)} | shared
    tokens = sum(map(len, outcome.tokens_s.values()))
    yield {"metric": "tokens_per_s", "value": tokens / outcome.end_s} | shared


class TimedChannel:
    """The server's end of the loop: sends requests at their times, and ends all at the end."""

    def __init__(self, arrivals: Arrivals, until_s: float, clock: Callable[[], float]) -> None:
        self._pending, self._until_s = list(reversed(arrivals)), until_s
        self._live: set[str] = set()
        self._clock, self._began_s = clock, clock()
        self.outcome = Outcome({each.request_id: [] for _, each in arrivals})

    def receive(self, *, waits: bool) -> list[Any]:
        """Return the requests whose time has come; with ``waits``, wait for the next."""
        while True:
            now_s = self._clock() - self._began_s
            if now_s >= self._until_s:
                self._pending, live = [], list(self._live)
                self._live.clear()
                return [Shutdown()] if waits else [Abort(name) for name in live]
            if self._pending and self._pending[-1][0] <= now_s:
                return [self._next() for _ in range(len(self._pending)) if self._pending[-1][0] <= now_s]
            if not waits:
                return []
            if not self._pending:
                return [Shutdown()]
            self._began_s -= max(0.0, min(self._pending[-1][0], self._until_s) - now_s)  # it comes at once

    def _next(self) -> Submit:
        request = self._pending.pop()[1]
        self._live.add(request.request_id)
        return request

    def send(self, message: Any) -> None:
        """Note when tokens came."""
        encode(message)
        now_s = self._clock() - self._began_s
        if now_s < self._until_s:
            self.outcome.take(message.events, now_s)
            self.outcome.prompt_tokens = message.load.prompt_tokens_total
        self._live -= {event.request_id for event in message.events if event.finish}


def engine_drive(
    options: argparse.Namespace, shape: str, batch: int, context: int
) -> tuple[Drive, Limits, Any]:
    """Bring up an engine in this process."""
    is_cpu = options.device == "cpu"
    clock = time.process_time if is_cpu else time.perf_counter
    target = open_target(
        TargetOptions(shape, options.device, batch, context, options.kv_tokens, threads=1 if is_cpu else None)
    )

    def drive(limits: Limits, arrivals: Arrivals, until_s: float) -> Outcome:
        channel = TimedChannel(arrivals, until_s, clock)
        loop.run(channel, make_scheduler(limits), target.runner)
        return channel.outcome

    return drive, target.limits, target


def simulated_drive() -> tuple[Drive, Limits]:
    """Return the scheduler of a Llama-3-8B on an H200, without an engine."""
    limits = Limits(
        one_pool(52_000, 16),
        max_step_tokens=8192,
        max_concurrent=32,
        max_context=131_072,
        vocab=128_256,
        mixed_step_tokens=2048,
        context_work=context_work(shape_spec("llama-3-8b")),
    )
    return lambda limits, arrivals, until_s: simulate(
        make_scheduler(limits), arrivals, until_s=until_s
    ), limits


CPU_MANY = Sizes(choice_tokens=256, many_s=30, every_s=5)
CPU_LONG = Sizes(long_s=20, every_s=2)


def run(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield the rows of the machine that was asked for."""
    if options.device == "simulated":
        drive, limits = simulated_drive()
        shared = {"path": "scheduler alone", "shape": "llama-3-8b", "of": "NVIDIA H200"}
        for is_deterministic in (False, True):
            own = replace(limits, separate_prefill_decode=is_deterministic)
            for row in rows(drive, own, Sizes(), "many long mixed"):
                yield shared | row | {"deterministic": is_deterministic}
        return
    if options.device == "cpu":
        shape = options.shape or "smollm2-135m"
        for name, context, sizes, load in (
            (shape, 2048, CPU_MANY, "many"),
            ("toy", 131_072, CPU_LONG, "long"),
        ):
            drive, limits, _ = engine_drive(options, name, 8, context)
            for row in rows(drive, limits, sizes, load):
                yield {"path": "reference", "shape": name, "batch": 8} | row
        return
    shape = options.shape or "llama-3-8b"
    drive, limits, target = engine_drive(options, shape, 32, 131_072)
    drive(limits, mixed(Sizes(), limits.vocab), 3.0)  # what the first steps load and capture
    sizes = Sizes(targets_s=(None, 0.020, 0.030), long_s=40.0)
    for row in rows(drive, limits, sizes, "mixed many long"):
        given = target.row(str(row["metric"]), 0.0, batch=32, context=0).to_dict()
        yield given | row | {"path": "as served"}


def main() -> None:
    """Read the command line, measure, print the rows and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", choices=("simulated", "cpu", "cuda"))
    parser.add_argument("--shape", help="a named shape (random weights) or a folder")
    parser.add_argument("--kv-tokens", type=int, help="capacity of the KV cache")
    parser.add_argument("--record", type=Path, help="file of the record")
    parser.add_argument("--commit")
    options = parser.parse_args()
    name = f"fairness-{options.device}"
    made = []
    for row in run(options):
        made.append(row)
        print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    device = "cuda" if options.device == "cuda" else "cpu"
    command = ["python", "tests/bench/bench_fairness.py", *sys.argv[1:]]
    record = make_record(name, [], device=device, command=command, commit=options.commit)
    write_record(options.record or RECORDS / f"{name}.json", record | {"rows": made})


if __name__ == "__main__":
    main()
