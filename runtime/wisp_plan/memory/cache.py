"""Caches of a model's layers: groups of equal ones, and their memory.

A mixer's spec declares its cache. Layers with equal caches form a group: one block table, or one state slot,
of a sequence serves them all. The ledger counts groups, the device allocates them, the engine's cache manager
hands out their blocks and slots.

Pure. The specs are in :mod:`wisp_plan.spec.cache`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from wisp_plan.kv_formats.format import ELEMENT_BYTES, KvFormat
from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.kv_formats.plain import FLOAT32
from wisp_plan.spec.cache import PagedKV, State
from wisp_plan.spec.model import ModelSpec

SNAPSHOTS_A_SEQUENCE = 1
"""Snapshots of recurrent state in the prefix cache, for each sequence that may run."""

RECURRENCE_CHUNK_TOKENS = 64
"""Tokens of a prompt that a recurrent layer's kernels compute at a time: snapshots are taken between them."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers with equal caches.

    Attributes:
        spec: :class:`State`, or a :class:`Paged` spec.
        layers: their positions in the model, ascending.
        parts: position of the cache among the layer's own, one of each layer; empty: each has only this.
    """

    spec: Any
    layers: tuple[int, ...]
    parts: tuple[int, ...] = ()

    @property
    def token_bytes(self) -> int:
        """Bytes of one token of one sequence, in all layers; 0 of a state."""
        if isinstance(self.spec, State):
            return 0
        elements = sum(map(math.prod, self.spec.block_shapes(1)))
        return len(self.layers) * elements * ELEMENT_BYTES[self.spec.format.dtype]

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence's state, in all layers; 0 of a paged cache."""
        return len(self.layers) * self.spec.slot_bytes if isinstance(self.spec, State) else 0

    def sequence_blocks(self, tokens: int, block_tokens: int, max_step_tokens: int) -> int:
        """Return the most blocks that a sequence of up to ``tokens`` tokens holds at a time.

        Blocks behind the window are given back. A step of ``max_step_tokens`` tokens needs the window of its
        first token and the blocks that it fills; of the first and of the last it may use a part.
        """
        every: int = -(-tokens // block_tokens)
        window: int | None = self.spec.window
        if window is None:
            return every
        return min(every, -(-(window + max_step_tokens) // block_tokens) + 1)

    def decode_blocks(self, tokens: int, block_tokens: int) -> int:
        """Return the most blocks that a sequence of up to ``tokens`` tokens holds after its prompt.

        Its window covers the first and the last in part.
        """
        every: int = -(-tokens // block_tokens)
        window: int | None = self.spec.window
        return every if window is None else min(every, -(-window // block_tokens) + 1)


def groups(caches: Sequence[Any | None], kv: KvLayers | str) -> tuple[CacheGroup, ...]:
    """Group layers by their caches, as they are held; the paged groups come first.

    Args:
        caches: cache spec of each layer, None for a layer without, a tuple for parallel mixers.
        kv: formats of keys and values, or the name of one for all layers.
    """
    kv = _layers(kv)
    members: dict[Any, list[tuple[int, int]]] = {}
    for index, of_layer in enumerate(caches):
        for part, spec in enumerate(of_layer if isinstance(of_layer, tuple) else (of_layer,)):
            if spec is not None:
                held = _held(spec, kv.of_layer(index, len(caches)), kv.plain)
                members.setdefault(held, []).append((index, part))
    grouped = [_group(spec, *zip(*places, strict=True)) for spec, places in members.items()]
    return tuple(sorted(grouped, key=lambda group: isinstance(group.spec, State)))


def _group(spec: Any, layers: tuple[int, ...], parts: tuple[int, ...]) -> CacheGroup:
    return CacheGroup(spec, layers, parts if any(parts) else ())


def sequence_blocks(
    groups: tuple[CacheGroup, ...], tokens: int, block_tokens: int, max_step_tokens: int
) -> int:
    """Return the blocks that a sequence of ``tokens`` tokens needs of the group that needs the most."""
    paged = (group for group in groups if not isinstance(group.spec, State))
    return max((group.sequence_blocks(tokens, block_tokens, max_step_tokens) for group in paged), default=0)


def model_groups(spec: ModelSpec, kv: KvLayers | str) -> tuple[CacheGroup, ...]:
    """Return the cache groups of a model; ``kv`` as in :func:`groups`."""
    return groups([None if layer.mixer is None else layer.mixer.cache() for layer in spec.layers], kv)


def kv_bytes_per_token(spec: ModelSpec, kv: KvLayers | str) -> int:
    """Return the bytes that one token of one sequence takes in the KV cache, over all layers."""
    return sum(group.token_bytes for group in model_groups(spec, kv))


def _layers(kv: KvLayers | str) -> KvLayers:
    if isinstance(kv, KvLayers):
        return kv
    return KvLayers.of(kv, "cpu" if kv == FLOAT32.name else "cuda")


def _held(spec: Any, kv_format: KvFormat, plain: KvFormat) -> Any:
    if not isinstance(spec, State):
        return replace(spec, format=kv_format)
    return replace(spec, dtypes=("float32",) * len(spec.dtypes)) if plain is FLOAT32 else spec


@dataclass(frozen=True, slots=True)
class Pool:
    """Blocks of one paged group.

    Attributes:
        group: the layers.
        blocks: P, number of blocks.
    """

    group: CacheGroup
    blocks: int

    def sequences(self, tokens: int, block_tokens: int, max_step_tokens: int) -> int:
        """Return the number of sequences of ``tokens`` tokens that fit at a time.

        A step's tokens are shared: while one sequence fills the blocks of a prompt's step, the others decode.
        For layers with windows that is an upper bound, in steady state; admission checks blocks itself.
        """
        first = self.group.sequence_blocks(tokens, block_tokens, max_step_tokens)
        others = (self.blocks - first) // self.group.decode_blocks(tokens, block_tokens)
        return max(0, 1 + others)


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Cache of a model, as it is allocated.

    Attributes:
        block_tokens: Tb, tokens of a block.
        pools: one for each paged group.
        states: groups with a recurrent state.
        state_slots: sequences that have a state at a time; 0 without such groups.
        snapshots: states that the prefix cache keeps.
        snapshot_tokens: tokens between positions of snapshots, a multiple of a block's; 0: those of a block.
    """

    block_tokens: int
    pools: tuple[Pool, ...]
    states: tuple[CacheGroup, ...] = ()
    state_slots: int = 0
    snapshots: int = 0
    snapshot_tokens: int = 0

    @property
    def stride(self) -> int:
        """Tokens between positions from which a later sequence can go on."""
        return self.snapshot_tokens if self.states and self.snapshot_tokens else self.block_tokens

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence's state, or of one snapshot, in all layers."""
        return sum(group.slot_bytes for group in self.states)

    @property
    def paged_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(pool.blocks * self.block_tokens * pool.group.token_bytes for pool in self.pools)

    @property
    def size_bytes(self) -> int:
        """Bytes of all of it."""
        return self.paged_bytes + (self.state_slots + self.snapshots) * self.slot_bytes

    def with_groups(self, groups: tuple[CacheGroup, ...]) -> CacheSizes:
        """Return as many blocks and slots of other ``groups``, such as a rank's, one for one."""
        paged = [group for group in groups if not isinstance(group.spec, State)]
        pools = tuple(replace(pool, group=group) for pool, group in zip(self.pools, paged, strict=True))
        return replace(self, pools=pools, states=tuple(groups[len(paged) :]))

    def sequences(self, tokens: int, max_step_tokens: int) -> int | None:
        """Return the number of sequences of ``tokens`` tokens that fit at a time; None: any."""
        counts = (pool.sequences(tokens, self.block_tokens, max_step_tokens) for pool in self.pools)
        return min(counts, default=None)

    def tokens(self, sequences: int, max_context: int, max_step_tokens: int) -> int:
        """Return the tokens, up to ``max_context``, that ``sequences`` sequences can hold each at a time."""
        tokens = max_context
        for pool in self.pools:
            if pool.sequences(max_context, self.block_tokens, max_step_tokens) < sequences:
                tokens = min(tokens, pool.blocks // sequences * self.block_tokens)
        return tokens


def one_pool(blocks: int, block_tokens: int, window: int | None = None) -> CacheSizes:
    """Return the cache of a single layer of attention, for code that does not ask for its bytes."""
    return CacheSizes(block_tokens, (Pool(CacheGroup(PagedKV(1, 1, 1, window=window), (0,)), blocks),))


def cache_sizes(
    groups: tuple[CacheGroup, ...],
    blocks: int,
    *,
    block_tokens: int,
    max_concurrent: int,
    max_step_tokens: int,
    max_context: int,
) -> CacheSizes:
    """Divide memory among groups.

    Args:
        groups: groups of a model.
        blocks: blocks of the group that needs the most for a sequence of ``max_context`` tokens. A group with
            a narrower window has no more than the windows of all sequences and two steps (one under way, one
            prepared) fill.
    """
    paged = [group for group in groups if not isinstance(group.spec, State)]
    states = tuple(group for group in groups if isinstance(group.spec, State))
    needs = [group.sequence_blocks(max_context, block_tokens, max_step_tokens) for group in paged]
    pools = []
    for group, need in zip(paged, needs, strict=True):
        size = blocks
        if need < max(needs):
            of_windows = max_concurrent * group.decode_blocks(max_context, block_tokens)
            size = min(blocks, of_windows + 2 * -(-max_step_tokens // block_tokens))
        pools.append(Pool(group, size))
    if not states:
        return CacheSizes(block_tokens, tuple(pools))
    snapshots = SNAPSHOTS_A_SEQUENCE * max_concurrent
    stride = state_stride(block_tokens)
    return CacheSizes(block_tokens, tuple(pools), states, max_concurrent, snapshots, stride)


def state_stride(block_tokens: int) -> int:
    """Return the tokens between positions at which a recurrent state may have a snapshot."""
    return math.lcm(block_tokens, RECURRENCE_CHUNK_TOKENS)
