"""Decode attention alone: microseconds a layer, and the rate at which K and V are read.

Shapes are Llama-3-8B's. Launches cycle through several layers, so that K and V are not in the L2 already; all
launches of a round are one CUDA graph, its edges programmatic as in a step.

    PYTHONPATH=runtime:operator python tests/bench/bench_decode_attention.py [--rounds 20] [--record PATH]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import attention_layers as layers
import click
import cupy as cp
import numpy as np
from attention_layers import BLOCK_TOKENS, HEADS, SIZE

from wisp_runtime.ops.cuda.attention.decode_attention import DecodeAttention
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.gpu import Gpu, open_gpu

CASES = {  # contexts, and the target in microseconds on an H200
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
MAX_LAYERS = 64
LAUNCHES = 32  # minimum of a graph, so that its own start is negligible


class Case:
    """One decode step's attention in every layer, with K and V in blocks that lie anywhere.

    Args:
        device: the GPU.
        contexts: tokens of each sequence.
        room: capacity of the block tables in tokens.
    """

    def __init__(self, device: Gpu, contexts: list[int], room: int) -> None:
        self.device, batch = device, len(contexts)
        random = np.random.default_rng(batch)
        counts = [-(-context // BLOCK_TOKENS) for context in contexts]
        blocks = random.permutation(sum(counts)).astype(np.int32)
        tables = np.zeros((batch, room // BLOCK_TOKENS), np.int32)
        for row, (first, last) in enumerate(pairwise(np.cumsum([0, *counts]))):
            tables[row, : last - first] = blocks[first:last]
        self.bytes_read = layers.layer_bytes(sum(contexts))
        self.caches = layers.caches(random, sum(contexts), len(blocks), MAX_LAYERS)
        self.q = layers.normal(random, (batch, HEADS, SIZE))
        self.out = cp.empty((batch, HEADS * SIZE), BF16)
        self.batch = layers.step(range(batch + 1), contexts, tables)
        self.launches = -(-LAUNCHES // len(self.caches)) * len(self.caches)

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

        return layers.graph_of(self.device, run)


def measure(device: Gpu, choices: tuple[int, ...], room: int, rounds: int) -> list[dict[str, object]]:
    """Measure every case with every number of thread blocks a multiprocessor."""
    rows = []
    for name, (contexts, wanted_us) in CASES.items():
        case = Case(device, contexts, max(room, *contexts))
        for blocks_per_sm in choices:
            run = case.graph(DecodeAttention(device, blocks_per_sm=blocks_per_sm), room)
            times = layers.time_us(device, run, case.launches, rounds)
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
    device = open_gpu(0)
    layers.write_record("decode_attention", device, measure(device, choices, room, rounds), record)


if __name__ == "__main__":
    main()
