"""Shared by the attention benchmarks: layers to cycle through, their CUDA graph, its times, the record."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import cupy as cp
import numpy as np

from wisp_runtime.batch import Batch
from wisp_runtime.bench.record import shown_command
from wisp_runtime.ops.cuda.device.arrays import BF16, to_device
from wisp_runtime.ops.cuda.device.gpu import Gpu

HEADS, KV_HEADS, SIZE, BLOCK_TOKENS = 32, 8, 128, 16  # Llama-3-8B
L2_BYTES = 64 << 20
PAUSE_S = 0.1  # between timings: power throttling makes the later one look slower


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> cp.ndarray:
    """Return normal numbers as bf16; a million of them, over and over."""
    some = random.standard_normal(min(1 << 20, math.prod(shape)), np.float32)
    return to_device(np.resize(some.astype(BF16), shape))


def layer_bytes(tokens: int) -> int:
    """Return the bytes of K and V of one layer."""
    return 4 * tokens * KV_HEADS * SIZE


def caches(random: np.random.Generator, tokens: int, blocks: int, most_layers: int) -> list[tuple]:
    """Return K and V of as many layers as exceed the L2 twice, at most ``most_layers``."""
    layers = max(2, min(most_layers, -(-2 * L2_BYTES // layer_bytes(tokens))))
    shape = (blocks, KV_HEADS, BLOCK_TOKENS, SIZE)
    return [(normal(random, shape), normal(random, shape)) for _ in range(layers)]


def step(starts: Sequence[int], contexts: Sequence[int], tables: np.ndarray) -> Batch:
    """Return a step as attention sees it; of the rest of a step there is nothing."""
    unused = np.zeros(0, np.int32)
    return Batch(
        **dict.fromkeys(("tokens", "positions", "slots", "logit_rows"), unused),
        query_starts=to_device(starts, np.int32),
        context_lengths=to_device(contexts, np.int32),
        block_tables=to_device(tables, np.int32),
        query_starts_host=tuple(starts),
        context_lengths_host=tuple(contexts),
    )


def graph_of(device: Gpu, run: Callable[[], None]) -> Callable[[], None]:
    """Return a function that launches all that ``run`` does as one graph."""
    run()
    device.stream.begin_capture()
    run()
    graph = device.stream.end_capture()
    return lambda: graph.launch(device.stream)


def time_us(device: Gpu, run: Callable[[], None], launches: int, rounds: int) -> list[float]:
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


def write_record(name: str, device: Gpu, rows: list[dict[str, object]], path: Path | None) -> None:
    """Print what ``bench_NAME.py`` measured, and write it to ``path`` if there is one."""
    content = {
        "name": name,
        "gpu": device.name,
        "shape": {"heads": HEADS, "kv_heads": KV_HEADS, "head_size": SIZE, "block_tokens": BLOCK_TOKENS},
        "command": shown_command(["python", f"tests/bench/bench_{name}.py", *sys.argv[1:]]),
        "rows": rows,
    }
    print(json.dumps(content))
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n")
