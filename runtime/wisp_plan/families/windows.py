"""Sliding windows: keys of the layers that attend to a limited distance only.

A window is the number of positions that a token sees, its own included; None: all. One that is no shorter
than the longest context is None too, so that equal layers are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from wisp_plan.families.reader import ConfigReader

Windows = tuple[int | None, ...]
"""Window of each layer."""

FULL, SLIDING = "full_attention", "sliding_attention"


def read_qwen_windows(reader: ConfigReader, layers: int, max_context: int) -> Windows:
    """Read Qwen's windows: with ``use_sliding_window`` alone, in layers from ``max_window_layers`` on."""
    if not reader.flag("use_sliding_window", False):
        return (None,) * layers
    window = reader.optional_integer("sliding_window", 4096, minimum=1)
    first = reader.integer("max_window_layers", 28, minimum=0)
    usual = [SLIDING if index >= first else FULL for index in range(layers)]
    return windows_of(read_layer_types(reader, usual), window, max_context)


def read_layer_types(reader: ConfigReader, usual: Sequence[str]) -> list[str]:
    """Read ``layer_types``, full or sliding attention of each layer; where it is absent, ``usual``."""
    if reader.values.get("layer_types") is None:
        return list(usual)
    kinds = reader.items("layer_types")
    if len(kinds) != len(usual) or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise reader.bad(
            "layer_types", f"a list of {FULL} and {SLIDING}, one for each of {len(usual)} layers"
        )
    return list(map(str, kinds))


def windows_of(kinds: Sequence[str], window: int | None, max_context: int) -> Windows:
    """Return the window of each layer: ``window`` of those with sliding attention, if it ever closes."""
    closes = window is not None and window < max_context
    return tuple(window if closes and kind == SLIDING else None for kind in kinds)


def window_of_all_layers(reader: ConfigReader, window: int | None, layers: int, max_context: int) -> Windows:
    """Return the same window for all layers; ``layer_types`` may say whether they have it, not which."""
    kinds = read_layer_types(reader, [SLIDING] * layers)
    if len(set(kinds)) > 1:
        raise reader.bad("layer_types", "one kind for all layers of this architecture")
    return windows_of(kinds, window, max_context)
