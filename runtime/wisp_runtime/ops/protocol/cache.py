"""Memory of a device for caches: blocks of keys and values, slots of recurrent state."""

from __future__ import annotations

from typing import Protocol

from wisp_plan.kv_formats.format import KvFormat
from wisp_plan.kv_formats.plain import BF16
from wisp_runtime.batch import Array


class CacheOps(Protocol):
    """Allocation of caches, and copies between slots of recurrent state."""

    def kv_arena(self, shape: tuple[int, ...], kv_format: KvFormat = BF16) -> Array:
        """Allocate an array of a paged group, as keys ``[L, P, Hkv, Tb, Dh]``; its contents are undefined.

        Of a quantized format it holds bytes.
        """
        ...

    def state_arena(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Allocate one array of recurrent state, ``[slots, L, …]``, of ``bf16`` or ``float32``, zeroed."""
        ...

    def copy_slot(self, array: Array, source: int, target: int) -> None:
        """Copy slot ``source`` of an array of :meth:`state_arena` to ``target``, in the order of launches."""
        ...
