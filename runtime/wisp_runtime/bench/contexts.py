"""Give sequences a long context without computing it, so that decode steps at any length start at once.

The prompts' blocks are inserted into the prefix cache as if they had been computed, and the KV cache is
filled with random numbers. Sequences with these prompts then compute only their last block, which the prefix
cache never holds; from there on every step is a real one. Their text is meaningless.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.ops.protocol.ops import Ops

Prompt = tuple[int, ...]
_NOISE_ELEMENTS = 1 << 20


def make_prompts(count: int, tokens: int, vocab: int, seed: int) -> list[Prompt]:
    """Return ``count`` prompts of ``tokens`` random token ids; another seed gives others."""
    rng = random.Random(seed)
    return [tuple(rng.choices(range(vocab), k=tokens)) for _ in range(count)]


def insert_prefixes(scheduler: Scheduler, prompts: Iterable[Prompt]) -> None:
    """Insert the blocks of ``prompts``, and a snapshot of each, into the prefix cache, whatever they contain.

    There must be free blocks and snapshots for all of them. The scheduler reuses prefixes
    (``Limits.reuses_prefixes``).
    """
    manager, limits = scheduler.cache, scheduler.limits
    for prompt in prompts:
        stride = limits.cache.stride
        end = (len(prompt) - 1) // stride * stride
        cache = manager.admit(prompt, reusable_tokens=end, spare_blocks=None)
        assert cache is not None
        for start in range(0, end, limits.max_step_tokens):
            computed = min(start + limits.max_step_tokens, end)
            manager.extend(cache, start, computed)
            if manager.has_states:
                manager.take_snapshot(cache, computed)
            manager.publish(cache, prompt, computed)
        manager.release(cache)


def fill_with_noise(cache: ModelCache, ops: Ops, seed: int = 0) -> None:
    """Fill keys and values with standard normal numbers, repeating a million of them."""
    for number, array in enumerate(array for group in cache.groups for array in group):
        rng = np.random.default_rng((seed, number))
        count = min(array.size, _NOISE_ELEMENTS)
        if array.dtype == np.uint8:  # codes and scales that are finite in every format
            noise = rng.integers(0x20, 0x40, count, np.uint8) | rng.integers(0, 2, count, np.uint8) << 7
        else:
            noise = rng.standard_normal(count, np.float32).astype(array.dtype)
        bits = f"u{array.dtype.itemsize}"
        _tile(array.reshape(-1).view(bits), ops.from_host(noise.view(bits)))


def _tile(flat: Array, noise: Array) -> None:
    """Repeat ``noise`` over ``flat`` by copies that double in length."""
    _copy(flat[: noise.size], noise)
    done = noise.size
    while done < flat.size:
        more = min(done, flat.size - done)
        _copy(flat[done : done + more], flat[:more])
        done += more


def _copy(target: Array, source: Array) -> None:
    """Copy contiguous memory; on a GPU without an assignment, for which CuPy may compile a kernel."""
    if isinstance(target, np.ndarray):
        target[:] = source
    else:
        target.data.copy_from_device_async(source.data, source.nbytes)
