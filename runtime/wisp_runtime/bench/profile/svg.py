"""SVG chart of a profile: one bar for the step, one for a layer, and a legend with the numbers."""

from __future__ import annotations

from xml.sax.saxutils import escape

from wisp_runtime.bench.profile.breakdown import Profile

COLOURS = {
    "embedding": "#8d99ae",
    "norm": "#b8c0ca",
    "qkv": "#1d6fa5",
    "rope + KV": "#7fb8d8",
    "attention": "#d1495b",
    "mixer input": "#3d5a80",
    "convolution": "#98c1d9",
    "recurrence": "#ee6c4d",
    "output": "#2a9d8f",
    "router": "#7a5195",
    "experts": "#bc5090",
    "gate/up": "#edae49",
    "down": "#c98b1b",
    "linear": "#5f7a61",
    "head": "#6a4c93",
    "sampling": "#b392ac",
    "other": "#555555",
}
_PALE = {"norm", "rope + KV", "convolution", "gate/up", "sampling"}
_OUTSIDE_LAYERS = ("embedding", "head", "sampling", "other")
_WIDTH, _LEFT, _BAR, _LINE = 960, 20, 44, 20
_MIN_LABEL_WIDTH = 60


def render(profile: Profile) -> str:
    """Return the chart as the text of an SVG file."""
    phases = profile.phases()
    layer = {phase: us / profile.layers for phase, us in phases.items() if phase not in _OUTSIDE_LAYERS}
    height = 175 + 2 * _BAR + _LINE * len(phases)
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        text(_LEFT, 28, profile.title, size=16),
        *_bar(60, f"a step: {profile.us:,.0f} µs of {'kernels' if profile.has_kernels else 'ops'}", phases),
        *_bar(60 + _BAR + 50, f"a layer: {sum(layer.values()):,.1f} µs, the mean of {profile.layers}", layer),
        *_legend(60 + 2 * (_BAR + 50), phases, profile.us),
        "</svg>",
    ]
    return "\n".join(elements) + "\n"


def _bar(top: float, title: str, phases: dict[str, float]) -> list[str]:
    """Return phases side by side, their widths proportional to their times."""
    scale = (_WIDTH - 2 * _LEFT) / (sum(phases.values()) or 1)
    elements, x = [text(_LEFT, top, title)], float(_LEFT)
    for phase, us in phases.items():
        width = us * scale
        area = f'x="{x:.1f}" y="{top + 8:.1f}" width="{width:.1f}" height="{_BAR}"'
        tooltip = f"<title>{escape(phase)}: {us:,.1f} µs</title>"
        elements.append(f'<rect {area} fill="{COLOURS[phase]}">{tooltip}</rect>')
        if width > _MIN_LABEL_WIDTH:
            fill = "#222222" if phase in _PALE else "white"
            elements.append(text(x + 5, top + 8 + _BAR / 2 + 5, phase, fill=fill))
        x += width
    return elements


def _legend(top: float, phases: dict[str, float], total_us: float) -> list[str]:
    elements = []
    for row, (phase, us) in enumerate(phases.items()):
        y = top + _LINE * row
        elements.append(
            f'<rect x="{_LEFT}" y="{y - 11:.1f}" width="14" height="14" fill="{COLOURS[phase]}"/>'
        )
        elements.append(text(_LEFT + 24, y, phase))
        elements.append(text(_LEFT + 130, y, f"{us:,.1f} µs a step, {100 * us / (total_us or 1):.1f} %"))
    return elements


def text(x: float, y: float, content: str, *, size: int = 13, fill: str = "#222222") -> str:
    """Return a line of text at a position."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}">{escape(content)}</text>'
