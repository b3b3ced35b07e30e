"""Arrays of a model's caches, allocated once: blocks of each paged group, slots of recurrent state.

Which block or slot belongs to which sequence is the engine's business (``engine/cache/manager.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.cache import CacheGroup, CacheSizes, cache_sizes, model_groups
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops.protocol.attention import UNQUANTIZED, KvEncoding
from wisp_runtime.ops.protocol.cache import CacheOps

KvScales = Mapping[int, tuple[float, float]]
"""Scales of a layer's keys and values, by layer."""

CopySlot = Callable[[Array, int, int], None]
"""Copy of one slot of a state's array to another: array, source, target."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Cache of one layer, as its mixer uses it.

    Attributes:
        arrays: for attention keys and values, ``[P, Hkv, Tb, Dh]`` each; for a recurrent mixer each array of
            its state, ``[slots, …]``.
        group: position of the layer's paged group: block tables and slots are ``batch.of_group(group)``'s.
        encoding: format and scales of keys and values.
        is_paged: whether it has blocks; otherwise slots of a state.
    """

    arrays: tuple[Array, ...]
    group: int = 0
    encoding: KvEncoding = UNQUANTIZED
    is_paged: bool = True


@dataclass(frozen=True, slots=True)
class ModelCache:
    """Caches of all layers.

    Attributes:
        block_tokens: Tb, tokens per block.
        layers: cache of each layer, of parallel mixers the first one's; None for a layer without.
        groups: arrays of each paged group, ``[L, P, …]`` with L layers of the group: of attention keys and
            values, a block of a head contiguous.
        states: all arrays of recurrent state, ``[slots, L, …]``: one sequence's is contiguous.
        copy_slot: device's copy.
        others: caches of the other parallel mixers, by layer and position among its mixers.
    """

    block_tokens: int
    layers: tuple[LayerCache | None, ...]
    groups: tuple[tuple[Array, ...], ...]
    states: tuple[Array, ...] = ()
    copy_slot: CopySlot | None = None
    others: Mapping[tuple[int, int], LayerCache] = field(default_factory=dict)

    @property
    def keys(self) -> Array:
        """Keys of the only group, ``[L, P, Hkv, Tb, Dh]``."""
        return self.groups[0][0]

    @property
    def values(self) -> Array:
        """Values of the only group, ``[L, P, Hkv, Tb, Dh]``."""
        return self.groups[0][1]

    @property
    def blocks(self) -> int:
        """P, the number of blocks of the only group."""
        return int(self.keys.shape[1])

    @property
    def kv_formats(self) -> tuple[KvFormat, ...]:
        """Formats of the layers' keys and values, each once."""
        return tuple(dict.fromkeys(encoding.format for encoding in self.encodings))

    @property
    def encodings(self) -> tuple[KvEncoding, ...]:
        """Encodings of the layers that have keys and values."""
        return tuple(layer.encoding for layer in self.layers if layer is not None and layer.is_paged)

    def of_layer(self, index: int, part: int = 0) -> LayerCache:
        """Return the cache of a layer that has one; ``part``: position among its parallel mixers."""
        layer = self.others[index, part] if part else self.layers[index]
        assert layer is not None, f"layer {index} declares no cache"
        return layer

    def copy_state(self, source: int, target: int) -> None:
        """Copy one sequence's recurrent state, of all layers, from slot to slot."""
        assert self.copy_slot is not None, "no layer has a recurrent state"
        for array in self.states:
            self.copy_slot(array, source, target)


def kv_cache(keys: Array, values: Array, block_tokens: int) -> ModelCache:
    """Return the cache of a model all of whose layers attend alike; arrays as of :class:`ModelCache`."""
    layers = tuple(LayerCache((keys[index], values[index])) for index in range(len(keys)))
    return ModelCache(block_tokens, layers, ((keys, values),))


def allocate(sizes: CacheSizes, ops: CacheOps, kv_scales: KvScales | None = None) -> ModelCache:
    """Allocate caches of ``sizes``.

    Args:
        kv_scales: scales of layers that are not 1.

    Raises:
        GpuOutOfMemory: there is less memory than the ledger counted on.
    """
    parts: dict[tuple[int, int], LayerCache] = {}
    groups = []
    for index, pool in enumerate(sizes.pools):
        spec, count = pool.group.spec, len(pool.group.layers)
        shapes = spec.block_shapes(sizes.block_tokens)
        arrays = tuple(ops.kv_arena((count, pool.blocks, *shape), spec.format) for shape in shapes)
        groups.append(arrays)
        for row, place in enumerate(_places(pool.group)):
            encoding = _encoding(spec.format, (kv_scales or {}).get(place[0], (1.0, 1.0)))
            parts[place] = LayerCache(tuple(array[row] for array in arrays), index, encoding)
    states: list[Array] = []
    for group in sizes.states:
        slots, count = sizes.state_slots + sizes.snapshots, len(group.layers)
        described = zip(group.spec.shapes, group.spec.dtypes, strict=True)
        arrays = tuple(ops.state_arena((slots, count, *shape), dtype) for shape, dtype in described)
        states += arrays
        for row, place in enumerate(_places(group)):
            parts[place] = LayerCache(tuple(array[:, row] for array in arrays), is_paged=False)
    count = max((layer for layer, _ in parts), default=-1) + 1
    first = tuple(parts.get((layer, 0)) for layer in range(count))
    others = {place: cache for place, cache in parts.items() if place[1]}
    return ModelCache(sizes.block_tokens, first, tuple(groups), tuple(states), ops.copy_slot, others)


def _places(group: CacheGroup) -> list[tuple[int, int]]:
    """List the layers of a group, each with the position of the cache among its own."""
    return list(zip(group.layers, group.parts or (0,) * len(group.layers), strict=True))


def _encoding(kv_format: KvFormat, scales: tuple[float, float]) -> KvEncoding:
    return KvEncoding(kv_format, *scales) if kv_format.has_layer_scale else KvEncoding(kv_format)


def allocate_blocks(
    spec: ModelSpec, ops: CacheOps, *, blocks: int, block_tokens: int, kv: KvLayers | str = "bf16"
) -> ModelCache:
    """Allocate ``blocks`` blocks of ``block_tokens`` tokens, and of a model with recurrent state one slot."""
    sizes = cache_sizes(
        model_groups(spec, kv),
        blocks,
        block_tokens=block_tokens,
        max_concurrent=blocks,
        max_step_tokens=blocks * block_tokens,
        max_context=blocks * block_tokens,
    )
    return allocate(replace(sizes, state_slots=min(1, sizes.state_slots), snapshots=0), ops)
