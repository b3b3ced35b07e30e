"""Models of random weights on the CPU, and steps of some of its sequences, without an engine."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np

from wisp_plan.memory.cache import cache_sizes, model_groups
from wisp_plan.weights.declaration import declare
from wisp_runtime.batch import Batch
from wisp_runtime.layers.cache import allocate
from wisp_runtime.models.registry import model_class
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.weights.arena import Weights

OPS = CpuOps(threads=1)
TB = 16


def random_model(spec, seed=6):
    """Return a model of ``spec``, and its weights by name: matrices that keep a row's size, others near 1."""
    weights, random, values = Weights(OPS, declare(spec)), np.random.default_rng(seed), {}
    for weight in declare(spec):
        numbers = random.standard_normal(weight.shape).astype(np.float32)
        if weight.role in ("norm", "parameter") and len(weight.shape) == 1:
            values[weight.name] = 1 + numbers * np.float32(0.3)
        else:
            values[weight.name] = numbers / np.float32(np.sqrt(weight.shape[-1]))
        destination = weights.destination(weight.name, (0,) * len(weight.shape), weight.shape, "F32")
        OPS.store(destination, values[weight.name].reshape(destination.shape))
    return model_class(spec)(spec, weights, OPS), values


def new_cache(spec, sequences=1, context=256):
    """Return a cache that holds ``sequences`` sequences of ``context`` tokens."""
    blocks = sequences * -(-context // TB)
    sizes = cache_sizes(
        model_groups(spec, "float32"),
        blocks,
        block_tokens=TB,
        max_concurrent=sequences,
        max_step_tokens=context,
        max_context=context,
    )
    return allocate(replace(sizes, pools=tuple(replace(pool, blocks=blocks) for pool in sizes.pools)), OPS)


def step(model, cache, chunks, rows=None, context=256):
    """Run ``chunks`` of (sequence, position of the first token, tokens); return logits of ``rows``, or all.

    Sequence n has the n-th ``context / TB`` blocks of every group, and state slot n.
    """
    width = -(-context // TB)
    counts = [len(tokens) for _, _, tokens in chunks]
    at = [(which, first + n) for which, first, tokens in chunks for n in range(len(tokens))]
    contexts = tuple(first + len(tokens) for _, first, tokens in chunks)
    starts, sequences = (0, *accumulate(counts)), [which for which, _, _ in chunks]
    batch = Batch(
        tokens=np.concatenate([tokens for _, _, tokens in chunks]).astype(np.int32),
        positions=np.array([position for _, position in at], np.int32),
        slots=np.array([which * width * TB + position for which, position in at]),
        query_starts=np.array(starts, np.int32),
        context_lengths=np.array(contexts, np.int32),
        block_tables=np.array([np.arange(width) + which * width for which in sequences], np.int32),
        logit_rows=np.arange(starts[-1]) if rows is None else np.array(rows),
        query_starts_host=starts,
        context_lengths_host=contexts,
        state_slots=np.array(sequences, np.int32) if cache.states else None,
    )
    batch = replace(batch, other_groups=(batch,) * (len(cache.groups) - 1))
    return model.forward(batch, cache).logits
