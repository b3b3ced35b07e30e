"""Self-test of the persistent decode kernel against the general path, before the server is ready.

Each row is a sequence of its own, of other tokens and another context, so that rows which are mixed up do not
pass for each other. The first is so long that its attention is split and combined. All that takes as long as
a prompt of some 2,000 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from wisp_plan.memory.cache import CacheSizes
from wisp_plan.spec.model import ModelSpec, repeated_layers
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.engine.cache.blocks import blocks_for
from wisp_runtime.engine.cache.sequence_cache import SequenceCache
from wisp_runtime.engine.execution.forward import ForwardPass
from wisp_runtime.engine.execution.packing import pack, with_fields
from wisp_runtime.engine.scheduling.plan import Chunk, Limits, Plan
from wisp_runtime.engine.scheduling.sequence import Sequence
from wisp_runtime.engine.transport.messages import Submit
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.ops.protocol.persistent import PersistentKernel

_WIDTHS = (1, 16, 32, 64)
_LONG_TOKENS = 1100
"""Length of the first prompt: a split of the kernel's attention has up to 1,024 tokens."""
_SHORT_TOKENS = 67
"""Bound of the others: a prime, so that all differ and end anywhere in a block."""

_STEP_TOKENS = 512
"""Tokens of the prompts' steps: their part of the workspace is taken anew by the largest step."""
_MIN_COSINE = 0.99
"""Bound of the cosine between the logits of the two paths; bf16 alone leaves 0.999 with random weights."""
_MIN_FIRST_LAYERS, _MIN_FIRST_COSINE, _MIN_MIXTURE_COSINE = 2, 0.8, 0.05
"""Of mixtures of experts: first layers, or a period of those of two kinds, and bounds of their cosine and of
that of all layers. Where two experts of a token are nearly equal, the paths, which round in other places,
choose either, and each layer then adds a few hundredths: of 40 with random weights 0.15 to 0.8 is left. A row
of another sequence has 0, once what all rows have in common is taken away."""
_ARRAYS = ("tokens", "positions", "query_starts", "context_lengths", "logit_rows")
_GROUP_ARRAYS = ("slots", "block_tables")


def compare_logits(
    forward_pass: ForwardPass, kernel: PersistentKernel, ops: Ops, limits: Limits
) -> str | None:
    """Run prompts, then a token of each both ways, in every width; return the difference if it is too large.

    Args:
        forward_pass: model and cache; blocks of the cache are overwritten.
        kernel: the persistent kernel of the model.
    """
    model, cache = forward_pass.model, forward_pass.cache
    sequences = list(_sequences(limits, min(kernel.max_sequences, _fitting_sequences(limits))))
    for plan in _prompts(sequences, min(limits.max_step_tokens, _STEP_TOKENS)):
        model.forward(_batch(ops, plan, limits.block_tokens), cache)
    states = _States(cache, len(sequences))
    is_mixture = bool(model.spec.ffns(MoeSpec))
    widths = sorted({min(width, len(sequences)) for width in _WIDTHS})
    bounds = _mixture_bounds(model.spec) if is_mixture else [(None, _MIN_COSINE)]
    for (layers, min_cosine), rows in product(bounds, widths):
        plan = tuple(Chunk.decode(sequence, sequence.prompt_tokens) for sequence in sequences[:rows])
        batch = _batch(ops, plan, limits.block_tokens)
        assert kernel.takes(batch), "this is no step of the persistent kernel"
        states.restore()
        general = ops.to_host(model.forward(batch, cache, layers=layers).logits).astype(np.float64)
        states.restore()
        whole = ops.to_host(kernel(batch, cache.groups, cache.states, layers)).astype(np.float64)
        if rows > 1 and is_mixture:
            common = general.mean(axis=0)
            general, whole = general - common, whole - common
        cosines = (general * whole).sum(axis=1)
        cosines /= np.linalg.norm(general, axis=1) * np.linalg.norm(whole, axis=1)
        worst = int(cosines.argmin())
        if not cosines[worst] >= min_cosine:
            depth = "" if layers is None else f" through {layers} layers"
            return (
                f"a step of {rows}{depth} in the persistent kernel differs from the general path: "
                f"cosine {cosines[worst]:.4f} after {plan[worst].start} tokens"
            )
    return None


def _mixture_bounds(spec: ModelSpec) -> list[tuple[int | None, float]]:
    """Return layers to run, None for all, and the least cosine that they may leave."""
    repeated = repeated_layers(spec)
    period = max(repeated.period, repeated.window_period) if repeated else 1
    first = min(max(_MIN_FIRST_LAYERS, period), len(spec.layers))
    return [(first, _MIN_FIRST_COSINE), (None, _MIN_MIXTURE_COSINE)]


class _States:
    """Recurrent states after the prompts, of the first slots, kept in those behind them."""

    def __init__(self, cache: ModelCache, sequences: int) -> None:
        self._cache, self._slots = cache, range(sequences if cache.states else 0)
        for slot in self._slots:
            cache.copy_state(slot, slot + len(self._slots))

    def restore(self) -> None:
        """Undo what steps have done to them."""
        for slot in self._slots:
            self._cache.copy_state(slot + len(self._slots), slot)


def _fitting_sequences(limits: Limits) -> int:
    """Return the sequences that the cache has blocks for, and two slots each if they have states."""
    sizes = limits.cache
    slots = (sizes.state_slots + sizes.snapshots) // 2
    return min(_blocks(sizes), slots) if sizes.states else _blocks(sizes)


def _blocks(sizes: CacheSizes) -> int:
    """Return the blocks that every paged group has."""
    return min(pool.blocks for pool in sizes.pools)


def _sequences(limits: Limits, rows: int) -> Iterator[Sequence]:
    """Yield ``rows`` prompts of noise and a token more each, in blocks of their own, as far as these go."""
    random = np.random.default_rng(rows)
    first_block, spare = 0, _blocks(limits.cache) - rows
    for row in range(rows):
        target = _LONG_TOKENS if row == 0 else 1 + 27 * row % _SHORT_TOKENS
        target = min(target, limits.max_context - 1)
        blocks = min(blocks_for(target + 1, limits.block_tokens), 1 + spare)
        tokens = min(target, blocks * limits.block_tokens - 1)
        ids = random.integers(0, limits.vocab, tokens + 1).tolist()
        request = Submit(f"self-test-{row}", tuple(ids[:-1]), 1)
        made = Sequence(request, priority_key=(row, row), max_length=tokens + 2, eos=frozenset())
        made.append(ids[-1])
        own = range(first_block, first_block + blocks)
        made.cache = SequenceCache.of_blocks(own, len(limits.cache.pools))
        made.cache.state_slot = row if limits.cache.states else -1
        first_block, spare = first_block + blocks, spare - (blocks - 1)
        yield made


def _prompts(sequences: list[Sequence], max_tokens: int) -> Iterator[Plan]:
    """Yield steps of at most ``max_tokens`` that compute all prompts; logits are target of every chunk."""
    chunks, budget = list[Chunk](), max_tokens
    for sequence in sequences:
        start = 0
        while start < sequence.prompt_tokens:
            tokens = min(sequence.prompt_tokens - start, budget)
            chunks.append(Chunk.prefill(sequence, start, tokens, samples=True))
            start, budget = start + tokens, budget - tokens
            if not budget:
                yield tuple(chunks)
                chunks, budget = [], max_tokens
    if chunks:
        yield tuple(chunks)


def _batch(ops: Ops, plan: Plan, block_tokens: int) -> Batch:
    """Lay out ``plan`` on the device."""
    host = pack(plan, block_tokens)
    names = _ARRAYS if host.state_slots is None else (*_ARRAYS, "state_slots")

    def placed(batch: Batch, names: Iterable[str]) -> dict[str, Array]:
        return {name: ops.from_host(getattr(batch, name)) for name in names}

    batch = with_fields(host, **placed(host, names))
    others = tuple(replace(other, **placed(other, _GROUP_ARRAYS)) for other in batch.other_groups)
    return replace(batch, **placed(batch, _GROUP_ARRAYS), other_groups=others)
