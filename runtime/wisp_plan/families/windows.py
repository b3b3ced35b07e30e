"""Sliding windows: keys of the layers that attend to a limited distance only."""

from __future__ import annotations

from wisp_plan.families.reader import ConfigReader

_KINDS = ("full_attention", "sliding_attention")


def read_qwen_window(reader: ConfigReader, layers: int, max_context: int) -> int | None:
    """Read Qwen's window: with ``use_sliding_window`` alone, in layers from ``max_window_layers`` on."""
    if not reader.flag("use_sliding_window", False):
        return None
    window = reader.optional_integer("sliding_window", 4096, minimum=1)
    first = reader.integer("max_window_layers", 28, minimum=0)
    if reader.values.get("layer_types") is None:
        if first >= layers:
            return None
        if first > 0 and window is not None and window < max_context:
            raise reader.bad(
                "max_window_layers", f"0 or at least {layers}, as layers of mixed attention are not supported"
            )
    return window_of_all_layers(reader, window, max_context)


def window_of_all_layers(reader: ConfigReader, window: int | None, max_context: int) -> int | None:
    """Return the window of every layer, or None when it is no shorter than the context."""
    kinds = reader.values.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or not kinds or any(kind not in _KINDS for kind in kinds):
            raise reader.bad("layer_types", f"a list of {' and '.join(_KINDS)}")
        if len(set(kinds)) > 1:
            raise reader.bad("layer_types", "one kind for all layers, as mixed attention is not supported")
        window = window if kinds[0] == "sliding_attention" else None
    return window if window is not None and window < max_context else None
