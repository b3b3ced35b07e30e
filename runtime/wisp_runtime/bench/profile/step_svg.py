"""One layer of a decode step in one launch, as an SVG: a line a thread block, a colour a phase."""

from __future__ import annotations

from xml.sax.saxutils import escape

from wisp_runtime.bench.profile.step_clocks import PARTS, Piece
from wisp_runtime.bench.profile.svg import COLOURS, text

_WIDTH, _LEFT, _TOP, _LINE, _BAR = 1100, 90, 60, 22, 16
_MOST_LINES, _TICK_US = 16, 10
_OPACITY = dict(zip(PARTS, (0.12, 1.0, 0.65, 0.4), strict=True))


def draw(title: str, pieces: list[Piece], layer: int) -> str:
    """Return the picture of ``layer`` on a choice of blocks, from the first to the last."""
    chosen = sorted({piece.block for piece in pieces})
    chosen = chosen[:: -(-len(chosen) // _MOST_LINES)]
    shown = [piece for piece in pieces if piece.layer == layer and piece.block in chosen]
    begin_us, end_us = min(one.begin_us for one in shown), max(one.end_us for one in shown)
    scale, bottom = (_WIDTH - _LEFT - 20) / (end_us - begin_us), _TOP + _LINE * len(chosen)
    phases = list(dict.fromkeys(piece.phase for piece in shown))
    height = bottom + 90
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        text(20, 28, f"{title}: layer {layer}, {end_us - begin_us:.1f} µs", size=16),
    ]
    for line, block in enumerate(chosen):
        y = _TOP + _LINE * line
        drawn.append(text(20, y + _BAR - 3, f"block {block}"))
        own = [piece for piece in shown if piece.block == block]
        drawn += [_bar(one, y, _LEFT + (one.begin_us - begin_us) * scale, scale) for one in own]
    for tick in range(0, int(end_us - begin_us) + 1, _TICK_US):
        drawn.append(text(_LEFT + tick * scale, bottom + 16, f"{tick} µs"))
    for place, phase in enumerate(phases):
        x = _LEFT + 130 * place
        drawn.append(f'<rect x="{x}" y="{bottom + 34}" width="14" height="14" fill="{COLOURS[phase]}"/>')
        drawn.append(text(x + 20, bottom + 46, phase))
    told = "full colour: products or attention; paler: adding sums, storing; palest: waiting to begin"
    drawn += [text(_LEFT, bottom + 72, told), "</svg>"]
    return "\n".join(drawn) + "\n"


def _bar(piece: Piece, y: float, x: float, scale: float) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{piece.us * scale:.1f}" height="{_BAR}"'
    told = f"<title>{escape(piece.phase)}, {piece.part}: {piece.us:.2f} µs</title>"
    return f'<rect {place} fill="{COLOURS[piece.phase]}" fill-opacity="{_OPACITY[piece.part]}">{told}</rect>'
