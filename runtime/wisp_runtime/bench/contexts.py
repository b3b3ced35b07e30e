"""Give sequences a long context without computing it, so that a decode step at any length is quick to reach.

The prompts' blocks are entered in the prefix cache as if they had been computed, and the KV cache is filled
with random numbers. Sequences that then arrive with these prompts compute only what the prefix cache never
holds, the last block; from there on every step is a real one. What they say means nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from wisp_runtime.batch import Array
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.layers.cache import KVCache
from wisp_runtime.ops.protocol.ops import Ops

Prompt = tuple[int, ...]
_NOISE_ELEMENTS = 1 << 20


def make_prompts(count: int, tokens: int, vocab: int, seed: int) -> list[Prompt]:
    """Draw ``count`` prompts of ``tokens`` random token ids; those of other seeds are others."""
    draw = random.Random(seed)
    return [tuple(draw.choices(range(vocab), k=tokens)) for _ in range(count)]


def place(scheduler: Scheduler, prompts: Iterable[Prompt]) -> None:
    """Let the blocks of ``prompts`` be found in the prefix cache, whatever is in them.

    There must be free blocks for all of them. The scheduler reuses prefixes (``Limits.reuses_prefixes``).
    """
    manager, limits = scheduler.cache, scheduler.limits
    for prompt in prompts:
        end = (len(prompt) - 1) // limits.block_tokens * limits.block_tokens
        cache = manager.admit(prompt, prompt_tokens=len(prompt), reusable_tokens=end, spare_blocks=None)
        assert cache is not None
        for start in range(0, end, limits.max_step_tokens):
            computed = min(start + limits.max_step_tokens, end)
            manager.extend(cache, start, computed)
            manager.publish(cache, prompt, computed)
        manager.release(cache)


def fill_with_noise(cache: KVCache, ops: Ops, seed: int = 0) -> None:
    """Fill keys and values with standard normal numbers, the same ones again after each million."""
    for number, array in enumerate((cache.keys, cache.values)):
        draw = np.random.default_rng((seed, number))
        noise = draw.standard_normal(min(array.size, _NOISE_ELEMENTS), np.float32).astype(array.dtype)
        bits = f"u{array.dtype.itemsize}"
        _spread(array.reshape(-1).view(bits), ops.from_host(noise.view(bits)))


def _spread(flat: Array, piece: Array) -> None:
    """Repeat ``piece`` over ``flat`` by copies that double in length."""
    _copy(flat[: piece.size], piece)
    done = piece.size
    while done < flat.size:
        more = min(done, flat.size - done)
        _copy(flat[done : done + more], flat[:more])
        done += more


def _copy(target: Array, source: Array) -> None:
    """Copy contiguous memory; on a GPU as such, because an assignment may make CuPy compile a kernel."""
    if isinstance(target, np.ndarray):
        target[:] = source
    else:
        target.data.copy_from_device_async(source.data, source.nbytes)
