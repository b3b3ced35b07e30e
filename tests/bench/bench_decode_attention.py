"""Decode attention alone: microseconds a layer, and the rate at which K and V are read.

Shapes are Llama-3-8B's. Layers rotate, so that K and V of a layer are not in the L2 from the time before; all
launches of a round are one CUDA graph, its edges programmatic as in a step.

    PYTHONPATH=runtime:operator python tests/bench/bench_decode_attention.py [--rounds 20] [--record PATH]
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import click
import cupy as cp
import numpy as np

from wisp_runtime.batch import Batch
from wisp_runtime.ops.cuda.arrays import BF16, to_device
from wisp_runtime.ops.cuda.decode_attention import DecodeAttention
from wisp_runtime.ops.cuda.device import Device, open_device

HEADS, KV_HEADS, SIZE, BLOCK_TOKENS = 32, 8, 128, 16
CASES = {  # contexts, and the microseconds we want on an H200
    "1 x 512": ([512], 5),
    "8 x 512": ([512] * 8, 9),
    "64 x 512": ([512] * 64, 40),
    "256 x 512": ([512] * 256, 150),
    "1 x 7900": ([7900], 16),
    "16 x 7900": ([7900] * 16, 130),
    "16 x 512": ([512] * 16, None),
    "32 x 1 to 2000": (list(range(1, 2001, 63)), None),
    "63 x 512, 1 x 32000": ([512] * 63 + [32000], None),
}
MOST_LAYERS, L2_BYTES = 64, 64 << 20
LAUNCHES = 32  # of a graph at least, so that its own start does not count
PAUSE_S = 0.1  # between timings: power throttling makes the later one look slower


class Case:
    """One decode step's attention in every layer, with K and V in blocks that lie anywhere.

    Args:
        device: the GPU.
        contexts: tokens of each sequence.
        room: tokens that the block tables have room for.
    """

    def __init__(self, device: Device, contexts: list[int], room: int) -> None:
        self.device, batch = device, len(contexts)
        random = np.random.default_rng(batch)
        counts = [-(-context // BLOCK_TOKENS) for context in contexts]
        blocks = random.permutation(sum(counts)).astype(np.int32)
        tables = np.zeros((batch, room // BLOCK_TOKENS), np.int32)
        for row, (first, last) in enumerate(pairwise(np.cumsum([0, *counts]))):
            tables[row, : last - first] = blocks[first:last]
        self.bytes_read = 4 * sum(contexts) * KV_HEADS * SIZE
        layers = max(2, min(MOST_LAYERS, -(-2 * L2_BYTES // self.bytes_read)))
        shape = (len(blocks), KV_HEADS, BLOCK_TOKENS, SIZE)
        self.caches = [(normal(random, shape), normal(random, shape)) for _ in range(layers)]
        self.q = normal(random, (batch, HEADS, SIZE))
        self.out = cp.empty((batch, HEADS * SIZE), BF16)
        unused = np.zeros(0, np.int32)
        self.batch = Batch(
            **dict.fromkeys(("tokens", "positions", "slots", "logit_rows"), unused),
            query_starts=to_device(range(batch + 1), np.int32),
            context_lengths=to_device(contexts, np.int32),
            block_tables=to_device(tables),
            query_starts_host=tuple(range(batch + 1)),
            context_lengths_host=tuple(contexts),
        )
        self.launches = -(-LAUNCHES // layers) * layers

    def graph(self, attend: DecodeAttention, room: int) -> Callable[[], None]:
        """Return a function that launches every layer, some of them again, as one graph."""

        def run() -> None:
            for number in range(self.launches):
                keys, values = self.caches[number % len(self.caches)]
                attend(
                    self.q,
                    keys,
                    values,
                    self.batch,
                    scale=SIZE**-0.5,
                    window=None,
                    max_context=room,
                    out=self.out,
                )

        run()
        stream = self.device.stream
        stream.begin_capture()
        run()
        graph = stream.end_capture()
        return lambda: graph.launch(stream)


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> cp.ndarray:
    """Return normal numbers as bf16; a million of them, over and over."""
    some = random.standard_normal(min(1 << 20, math.prod(shape)), np.float32)
    return to_device(np.resize(some.astype(BF16), shape))


def time_us(device: Device, run: Callable[[], None], launches: int, rounds: int) -> list[float]:
    """Return the microseconds a launch of each of ``rounds`` runs of ``launches``."""
    for _ in range(3):
        run()
    device.synchronize()
    time.sleep(PAUSE_S)
    events = [cp.cuda.Event() for _ in range(rounds + 1)]
    events[0].record(device.stream)
    for event in events[1:]:
        run()
        event.record(device.stream)
    device.synchronize()
    return [1e3 * cp.cuda.get_elapsed_time(*pair) / launches for pair in pairwise(events)]


def measure(device: Device, choices: tuple[int, ...], room: int, rounds: int) -> list[dict[str, object]]:
    """Measure every case with every number of thread blocks a multiprocessor."""
    rows = []
    for name, (contexts, wanted_us) in CASES.items():
        case = Case(device, contexts, max(room, *contexts))
        for blocks_per_sm in choices:
            run = case.graph(DecodeAttention(device, blocks_per_sm=blocks_per_sm), room)
            times = time_us(device, run, case.launches, rounds)
            middle = statistics.median(times)
            rows.append(
                {
                    "metric": "decode attention, us a layer",
                    "contexts": name,
                    "blocks_per_sm": blocks_per_sm,
                    "value": round(middle, 2),
                    "minimum": round(min(times), 2),
                    "wanted": wanted_us,
                    "gb_per_s": round(case.bytes_read / middle / 1e3),
                }
            )
            print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


@click.command()
@click.option("--blocks-per-sm", "choices", multiple=True, type=int, default=(2, 3), show_default=True)
@click.option("--room", default=32768, show_default=True, help="Tokens that a block table has room for.")
@click.option("--rounds", default=20, show_default=True, help="Runs of all layers a case.")
@click.option("--record", type=click.Path(path_type=Path), help="Write the rows there, as JSON.")
def main(choices: tuple[int, ...], room: int, rounds: int, record: Path | None) -> None:
    """Measure decode attention alone."""
    device = open_device(0)
    rows = measure(device, choices, room, rounds)
    content = {
        "name": "decode_attention",
        "gpu": device.name,
        "shape": {"heads": HEADS, "kv_heads": KV_HEADS, "head_size": SIZE, "block_tokens": BLOCK_TOKENS},
        "command": " ".join(["python", "tests/bench/bench_decode_attention.py", *sys.argv[1:]]),
        "rows": rows,
    }
    print(json.dumps(content))
    if record is not None:
        record.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
