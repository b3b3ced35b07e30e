"""A ``comm`` of two ranks in one process: each has half of the heads and of the ffn's inner channels."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from wisp_runtime.bench.checkpoint import write_checkpoint
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.loop import run
from wisp_runtime.engine.startup import start
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.ops import registry
from wisp_runtime.ops.cpu.cpu_device import CpuDevice

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from scripted_channel import ScriptedChannel

SIZE = 2


class PriorityKey:
    """One of the ranks; all of them sum in the order of their numbers, so all get the same bits."""

    size = SIZE

    def __init__(self, rank, barrier, partials):
        self.rank, self.barrier, self.partials, self.sums = rank, barrier, partials, 0

    def all_reduce(self, x):
        self.partials[self.rank] = x
        self.barrier.wait(timeout=60)
        total = np.add.reduce(self.partials)
        self.barrier.wait(timeout=60)  # nobody writes its next partial sum before all have read
        self.sums += 1
        return total


class RankDevice(CpuDevice):
    def __init__(self, comm):
        super().__init__(threads=1)
        self.comm = comm


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    write_checkpoint("toy", folder, lambda *_: None)
    return folder


def answers(folder, device):
    """Serve three prompts, two at a time; return the tokens, and the shape of the cache."""
    config = ServeConfig(model=str(folder), device=device, max_concurrent=2, max_context=128)
    engine = start(config, lambda _: None)
    greedy = SamplingParams(temperature=0.0)
    channel = ScriptedChannel(
        *(Submit(f"r{n}", tuple(range(3, 9 + 7 * n)), 20, greedy, ignore_eos=True) for n in range(3))
    )
    run(channel, engine.scheduler, engine.runner)
    return channel.tokens, engine


def test_two_ranks_give_the_tokens_of_one(folder):
    barrier, partials = threading.Barrier(SIZE), [None] * SIZE
    ranks = [PriorityKey(rank, barrier, partials) for rank in range(SIZE)]
    for rank in ranks:
        registry.register(f"rank{rank.rank}", lambda _threads, rank=rank: RankDevice(rank))
    with ThreadPoolExecutor(SIZE) as pool:
        served = list(pool.map(lambda one: answers(folder, f"rank{one.rank}"), ranks))
    expect, whole = answers(folder, "cpu")
    assert [tokens for tokens, _ in served] == [expect] * SIZE
    assert len({tuple(tokens) for tokens in expect.values()}) == 3
    assert ranks[0].sums == ranks[1].sums > 0
    models = [engine.runner.forward_pass.model for _, engine in served]
    assert [model.spec.layers[0].mixer.heads for model in models] == [2, 2]
    assert models[0].weights.arena.nbytes < 0.75 * whole.runner.forward_pass.model.weights.arena.nbytes
