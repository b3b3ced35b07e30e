"""Prefill attention alone: microseconds a layer and TFLOP/s of both families of kernels, and of torch.

Shapes are Llama-3-8B's. Launches cycle through several layers, so that K and V are not in the L2 already; all
launches of a round are one CUDA graph. The work is counted causally: 4 Dh Hq for each pair of query and key.
torch, if installed, attends to as much K and V without pages; behind a prefix without a mask.

    PYTHONPATH=runtime:operator python tests/bench/bench_prefill_attention.py [--rounds 20] [--record PATH]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import attention_layers as layers
import click
import cupy as cp
import numpy as np
from attention_layers import BLOCK_TOKENS, HEADS, KV_HEADS, SIZE

from wisp_runtime.ops.cuda.attention.prefill_attention import PrefillAttention
from wisp_runtime.ops.cuda.attention.prefill_plan import PORTABLE, WGMMA
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.gpu import Gpu, open_gpu

CASES = ((512, 0), (2048, 0), (8192, 0), (16, 7900))  # tokens, cached before them
MAX_LAYERS = 16


class Case:
    """One chunk of every layer, with its own K and V in blocks that lie anywhere.

    Args:
        device: the GPU.
        tokens: tokens of the chunk.
        prefix: tokens cached before it.
    """

    def __init__(self, device: Gpu, tokens: int, prefix: int) -> None:
        self.device, self.tokens, self.prefix = device, tokens, prefix
        random = np.random.default_rng(tokens)
        context = tokens + prefix
        blocks = -(-context // BLOCK_TOKENS)
        self.caches = layers.caches(random, context, blocks, MAX_LAYERS)
        self.layers = len(self.caches)
        self.q = layers.normal(random, (tokens, HEADS, SIZE))
        self.out = cp.empty((tokens, HEADS * SIZE), BF16)
        self.batch = layers.step((0, tokens), (context,), random.permutation(blocks)[None])

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

        return layers.graph_of(self.device, run)


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


def measure(device: Gpu, rounds: int) -> list[dict[str, object]]:
    """Measure every case with every implementation there is."""
    families = {"portable": PORTABLE} | ({"wgmma": WGMMA} if device.arch.startswith("sm_90") else {})
    rows = []
    for tokens, prefix in CASES:
        case = Case(device, tokens, prefix)
        runs = {
            name: case.ours(PrefillAttention(device, family, name=name)) for name, family in families.items()
        }
        if beside := torchs(case):
            runs["torch"] = beside
        for name, run in runs.items():
            times = layers.time_us(device, run, case.layers, rounds)
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
    device = open_gpu(0)
    layers.write_record("prefill_attention", device, measure(device, rounds), record)


if __name__ == "__main__":
    main()
