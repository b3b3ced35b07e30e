"""Prefill attention alone: microseconds a layer and TFLOP/s of both families of kernels, and of torch.

Shapes are Llama-3-8B's. Layers rotate, so that K and V of a layer are not in the L2 from the time before;
all launches of a round are one CUDA graph. The work is counted causally: 4 Dh Hq for each query and token
that it sees. torch, if it is there, attends to as much K and V without pages; behind a prefix without a mask.

    PYTHONPATH=runtime:operator python tests/bench/bench_prefill_attention.py [--rounds 20] [--record PATH]
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
from wisp_runtime.ops.cuda.device import Device, open_device
from wisp_runtime.ops.cuda.prefill_attention import PrefillAttention
from wisp_runtime.ops.cuda.prefill_plan import PORTABLE, WGMMA

HEADS, KV_HEADS, SIZE, BLOCK_TOKENS = 32, 8, 128, 16
CASES = ((512, 0), (2048, 0), (8192, 0), (16, 7900))  # tokens, cached before them
MOST_LAYERS, L2_BYTES = 16, 64 << 20
PAUSE_S = 0.1  # between timings: power throttling makes the later one look slower


class Case:
    """One chunk of every layer, with its own K and V in blocks that lie anywhere.

    Args:
        device: the GPU.
        tokens: of the chunk.
        prefix: tokens cached before it.
    """

    def __init__(self, device: Device, tokens: int, prefix: int) -> None:
        self.device, self.tokens, self.prefix = device, tokens, prefix
        random = np.random.default_rng(tokens)
        context = tokens + prefix
        blocks = -(-context // BLOCK_TOKENS)
        layer_bytes = 4 * context * KV_HEADS * SIZE
        self.layers = max(2, min(MOST_LAYERS, -(-2 * L2_BYTES // layer_bytes)))
        shape = (blocks, KV_HEADS, BLOCK_TOKENS, SIZE)
        self.caches = [(normal(random, shape), normal(random, shape)) for _ in range(self.layers)]
        self.q = normal(random, (tokens, HEADS, SIZE))
        self.out = cp.empty((tokens, HEADS * SIZE), BF16)
        unused = np.zeros(0, np.int32)
        self.batch = Batch(
            **dict.fromkeys(("tokens", "positions", "slots", "logit_rows"), unused),
            query_starts=to_device((0, tokens), np.int32),
            context_lengths=to_device((context,), np.int32),
            block_tables=to_device(random.permutation(blocks)[None], np.int32),
            query_starts_host=(0, tokens),
            context_lengths_host=(context,),
        )

    @property
    def flop(self) -> int:
        """Return the floating-point operations of one layer."""
        seen = self.tokens * self.prefix + self.tokens * (self.tokens + 1) // 2
        return 4 * seen * HEADS * SIZE

    def ours(self, attend: PrefillAttention) -> Callable[[], None]:
        """Return a function that runs every layer once, as one graph."""

        def run() -> None:
            for keys, values in self.caches:
                attend(self.q, keys, values, self.batch, scale=SIZE**-0.5, window=None, out=self.out)

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


def torchs(case: Case) -> Callable[[], None] | None:
    """Return a function that does the same with torch's flash attention, or None without torch."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return None
    context = case.tokens + case.prefix
    q = torch.randn(1, HEADS, case.tokens, SIZE, device="cuda", dtype=torch.bfloat16)
    shape = (case.layers, 2, 1, KV_HEADS, context, SIZE)
    caches = torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            for keys, values in caches:
                torch.nn.functional.scaled_dot_product_attention(
                    q, keys, values, is_causal=case.prefix == 0, enable_gqa=True
                )

    run()
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.ExternalStream(case.device.stream.ptr)
    with torch.cuda.graph(graph):
        run()

    def replay() -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay


def time_us(device: Device, run: Callable[[], None], layers: int, rounds: int) -> list[float]:
    """Return the microseconds a layer of each of ``rounds`` runs of ``layers``."""
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
    return [1e3 * cp.cuda.get_elapsed_time(*pair) / layers for pair in pairwise(events)]


def measure(device: Device, rounds: int) -> list[dict[str, object]]:
    """Measure every case with every implementation there is."""
    families = {"portable": PORTABLE} | ({"wgmma": WGMMA} if device.arch.startswith("sm_90") else {})
    rows = []
    for tokens, prefix in CASES:
        case = Case(device, tokens, prefix)
        runs = {name: case.ours(PrefillAttention(device, family)) for name, family in families.items()}
        if beside := torchs(case):
            runs["torch"] = beside
        for name, run in runs.items():
            times = time_us(device, run, case.layers, rounds)
            middle = statistics.median(times)
            rows.append(
                {
                    "metric": "prefill attention, us a layer",
                    "kernels": name,
                    "tokens": tokens,
                    "prefix": prefix,
                    "value": round(middle, 2),
                    "minimum": round(min(times), 2),
                    "tflops": round(case.flop / middle / 1e6, 1),
                }
            )
            print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


@click.command()
@click.option("--rounds", default=20, show_default=True, help="Runs of all layers a case.")
@click.option("--record", type=click.Path(path_type=Path), help="Write the rows there, as JSON.")
def main(rounds: int, record: Path | None) -> None:
    """Measure prefill attention alone."""
    device = open_device(0)
    rows = measure(device, rounds)
    content = {
        "name": "prefill_attention",
        "gpu": device.name,
        "shape": {"heads": HEADS, "kv_heads": KV_HEADS, "head_size": SIZE, "block_tokens": BLOCK_TOKENS},
        "command": " ".join(["python", "tests/bench/bench_prefill_attention.py", *sys.argv[1:]]),
        "rows": rows,
    }
    print(json.dumps(content))
    if record is not None:
        record.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
