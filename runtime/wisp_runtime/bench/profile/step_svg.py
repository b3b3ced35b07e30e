"""SVG chart of one layer in the persistent decode kernel: a line a thread block, a colour a phase."""

from __future__ import annotations

from xml.sax.saxutils import escape

from wisp_runtime.bench.profile.step_clocks import ACTIVITIES, Interval
from wisp_runtime.bench.profile.svg import COLOURS, text

_WIDTH, _LEFT, _TOP, _LINE, _BAR = 1100, 90, 60, 22, 16
_MAX_LINES, _TICK_US = 16, 10
_OPACITY = dict(zip(ACTIVITIES, (0.12, 1.0, 0.65, 0.4), strict=True))


def render(title: str, intervals: list[Interval], layer: int) -> str:
    """Return the chart of ``layer`` on evenly spaced blocks, from the first to the last."""
    chosen = sorted({interval.block for interval in intervals})
    chosen = chosen[:: -(-len(chosen) // _MAX_LINES)]
    shown = [interval for interval in intervals if interval.layer == layer and interval.block in chosen]
    begin_us, end_us = min(i.begin_us for i in shown), max(i.end_us for i in shown)
    scale, bottom = (_WIDTH - _LEFT - 20) / (end_us - begin_us), _TOP + _LINE * len(chosen)
    phases = list(dict.fromkeys(interval.phase for interval in shown))
    height = bottom + 90
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        text(20, 28, f"{title}: layer {layer}, {end_us - begin_us:.1f} µs", size=16),
    ]
    for line, block in enumerate(chosen):
        y = _TOP + _LINE * line
        elements.append(text(20, y + _BAR - 3, f"block {block}"))
        own = [interval for interval in shown if interval.block == block]
        elements += [_bar(i, y, _LEFT + (i.begin_us - begin_us) * scale, scale) for i in own]
    for tick in range(0, int(end_us - begin_us) + 1, _TICK_US):
        elements.append(text(_LEFT + tick * scale, bottom + 16, f"{tick} µs"))
    for column, phase in enumerate(phases):
        x = _LEFT + 130 * column
        elements.append(f'<rect x="{x}" y="{bottom + 34}" width="14" height="14" fill="{COLOURS[phase]}"/>')
        elements.append(text(x + 20, bottom + 46, phase))
    caption = "full colour: GEMM or attention; paler: adding partial sums, storing; palest: waiting to begin"
    elements += [text(_LEFT, bottom + 72, caption), "</svg>"]
    return "\n".join(elements) + "\n"


def _bar(interval: Interval, y: float, x: float, scale: float) -> str:
    area = f'x="{x:.1f}" y="{y:.1f}" width="{interval.us * scale:.1f}" height="{_BAR}"'
    fill = f'fill="{COLOURS[interval.phase]}" fill-opacity="{_OPACITY[interval.activity]}"'
    tooltip = f"<title>{escape(interval.phase)}, {interval.activity}: {interval.us:.2f} µs</title>"
    return f"<rect {area} {fill}>{tooltip}</rect>"
