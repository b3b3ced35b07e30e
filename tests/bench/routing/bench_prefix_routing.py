"""Routing by prefixes: LeastLoad, the policy before (a hash of the first KiB) and PrefixAware.

``replicas``: four pods of SmolLM2-135M on the CPU of this machine, behind a gateway; these figures are
published. ``simulated``: four pods of a cost model behind the gateway's own routing state, for workloads that
this machine cannot run. A favourable workload (agents whose histories grow), an unfavourable one (prompts
that share nothing), and one in which all share a long prefix. Writes a record each; asserts nothing.

    python tests/bench/routing/bench_prefix_routing.py simulated
    python tests/bench/routing/bench_prefix_routing.py replicas --model DIR --former DIR/operator
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click
from policies import POLICIES
from replicas import OPERATOR, GatewayProcess, Replica
from replicas import run as run_replicas
from simulation import GPU, Simulation
from workloads import Workload

from wisp_runtime.bench.record import shown_command

RECORDS = Path(__file__).parents[1] / "records"
PODS = 4
SIMULATED = (
    Workload("agents", 64, 160, 12, 8000, 2000, 4000, 150, 1.0),
    Workload("agents, more than slots", 128, 256, 12, 8000, 2000, 4000, 150, 0.3),
    Workload("agents, few", 12, 48, 12, 8000, 2000, 4000, 150, 2.0),
    Workload("agents, over the caches", 200, 260, 14, 8000, 4000, 8000, 100, 2.0),
    Workload("unique prompts", 64, 1500, 1, 0, 6000, 0, 150, 0),
    Workload("one shared prefix", 64, 1500, 1, 20_000, 1000, 0, 150, 0),
    Workload("one shared prefix, few", 8, 400, 1, 20_000, 1000, 0, 150, 0),
)
REPLICAS = (
    Workload("agents", 8, 8, 5, 1000, 800, 700, 12, 1.0),
    Workload("unique prompts", 8, 24, 1, 0, 900, 0, 12, 0),
    Workload("one shared prefix", 8, 24, 1, 3000, 200, 0, 12, 0),
    Workload("agents, sessions", 8, 8, 5, 1000, 800, 700, 12, 1.0, has_session=True),
)
FORMER, NEW, LOAD = "first KiB", "PrefixAware", "LeastLoad"


@click.group()
def main() -> None:
    """Compare the policies."""


@main.command()
@click.option("--record", type=click.Path(path_type=Path), default=RECORDS / "prefix-routing-simulated.json")
def simulated(record: Path) -> None:
    """Simulate four pods of an 8B on an H200; also with two gateways that share nothing."""
    rows = []
    for workload in SIMULATED:
        for policy, state in POLICIES.items():
            rows += _simulated_rows(workload, policy, Simulation(workload, GPU, PODS, 16, state).run())
    for workload in (SIMULATED[0], replace(SIMULATED[0], has_session=True)):
        result = Simulation(workload, GPU, PODS, 16, POLICIES[NEW], gateways=2).run()
        name = "two gateways, sessions" if workload.has_session else "two gateways"
        rows += _simulated_rows(replace(workload, name=name), NEW, result)
    _write("prefix-routing-simulated", rows, record, "a cost model of an 8B on an H200")


@main.command()
@click.option("--model", type=click.Path(path_type=Path, exists=True), required=True, help="SmolLM2-135M.")
@click.option(
    "--former", type=click.Path(path_type=Path, exists=True), required=True, help="operator/ before."
)
@click.option("--cache", default="192MiB", show_default=True, help="KV cache of each replica.")
@click.option("--only", multiple=True, help="Workloads; default: all.")
@click.option("--repeats", default=1, show_default=True)
@click.option("--record", type=click.Path(path_type=Path), default=RECORDS / "prefix-routing.json")
def replicas(
    model: Path, former: Path, cache: str, only: tuple[str, ...], repeats: int, record: Path
) -> None:
    """Run four replicas on this machine, one thread each."""
    ways = {LOAD: (OPERATOR, LOAD), FORMER: (former.resolve(), NEW), NEW: (OPERATOR, NEW)}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pods: list[Replica] = []
        try:
            for number in range(PODS):
                pods.append(Replica(model, folder, number, cache))
                pods[-1].wait()
            for repeat in range(repeats):
                for workload in REPLICAS:
                    if only and workload.name not in only:
                        continue
                    for policy in [NEW] if workload.has_session else ways:
                        rows += _measured_rows(workload, policy, ways[policy], folder, pods, repeat)
                        _write("prefix-routing", rows, record, f"KV cache {cache} a replica")
        finally:
            for pod in pods:
                pod.stop()


def _measured_rows(workload, policy, way, folder, pods, repeat) -> list[dict]:
    operator, routing = way
    load = os.getloadavg()[0]
    gateway = GatewayProcess(operator, folder, pods, routing)
    try:
        gateway.wait()
        got = run_replicas(workload, gateway.url, pods, f"{policy} {workload.name} {repeat}")
    finally:
        gateway.stop()
    prompt_tokens = got.cached_tokens + got.computed_tokens
    values = {
        "cached_share": got.cached_tokens / max(prompt_tokens, 1),
        "prompt_tokens": prompt_tokens,
        **_times(got.first_s),
        "answer_tokens_per_s": got.answer_tokens / got.total_s,
        "pods_cpu_s": got.cpu_s,
        "answers_busiest_to_mean": max(got.by_pod) * len(got.by_pod) / max(sum(got.by_pod), 1),
    }
    more = {"load_average_before": load, "requests": len(got.first_s), "repeat": repeat}
    return _rows(workload, policy, values, more)


def _simulated_rows(workload, policy, result) -> list[dict]:
    prompt_tokens = sum(pod.prompt_tokens for pod in result.pods)
    busy_s = [pod.busy_s for pod in result.pods]
    values = {
        "cached_share": sum(pod.cached_tokens for pod in result.pods) / prompt_tokens,
        "prompt_tokens": prompt_tokens,
        **_times(result.first_s),
        "answer_tokens_per_s": result.answer_tokens / result.total_s,
        "pods_busy_s": sum(busy_s),
        "busy_busiest_to_mean": max(busy_s) * len(busy_s) / sum(busy_s),
    }
    return _rows(workload, policy, values, {"requests": len(result.first_s)})


def _times(first_s: list[float]) -> dict[str, float]:
    ordered = sorted(first_s)
    at = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for name, share in SHARES.items()}
    return {f"first_token_{name}_s": value for name, value in at.items()}


HEADLINE = "cached_share"
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def _rows(workload: Workload, policy: str, values: dict, more: dict) -> list[dict]:
    shown = "  ".join(f"{name} {value:.3g}" for name, value in values.items())
    print(f"{workload.name:24} {policy:12} {shown}", flush=True)
    about = {"workload": workload.name, "policy": policy, **more}
    rounded = {name: round(value, 4) for name, value in values.items()}
    return [{"metric": HEADLINE, "value": rounded.pop(HEADLINE), **about, **rounded}]


def _write(name: str, rows: list[dict], path: Path, conditions: str) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    document = {
        "name": name,
        "commit": commit.stdout.strip(),
        "machine": f"{os.cpu_count()} CPUs, Linux {platform.release()}",
        "python": platform.python_version(),
        "command": shown_command(["python", "tests/bench/routing/bench_prefix_routing.py", *sys.argv[1:]]),
        "note": conditions,
    }
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = json.dumps(document, indent=1)[:-2]
    path.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
