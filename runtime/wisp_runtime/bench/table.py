"""Rows as lines of text."""

from __future__ import annotations

from wisp_plan.units import format_size
from wisp_runtime.bench.record import Row


def show_row(row: Row) -> str:
    """Return one line: metric, batch and context, value, spread, lower bound, baseline."""
    where = f"batch {row.batch}" + (f", context {row.context}" if row.context else "")
    phase = f" {row.more['phase']}" if "phase" in row.more else ""
    line = f"{row.shape}  {row.metric}{phase}  {where}  {_number(row, row.value)}"
    if "p10" in row.more:
        line += f"  (p10 {_number(row, row.more['p10'])}, p90 {_number(row, row.more['p90'])})"
    if cached := row.more.get("cached"):
        line += f"  {cached} cached"
    if "experts_hit" in row.more:
        hit, uniform = (_number(row, row.more[f"experts_hit{end}"]) for end in ("", "_uniform"))
        line += f"  {hit} experts hit a layer (uniform routing: {uniform})"
    if row.lower_bound is not None:
        line += f"  lower bound {_number(row, row.lower_bound)}"
    if row.baseline_value is not None:
        line += f"  {row.baseline} {_number(row, row.baseline_value)}"
    if "off_percent" in row.more:
        line += f"  {row.more['off_percent']:+.2f} % of the prediction"
    return line if row.path in ("general", "reference") else f"{line}  [{row.path}]"


def _number(row: Row, value: object) -> str:
    assert isinstance(value, int | float)
    if row.metric.endswith("_bytes"):
        return format_size(int(value))
    return f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"
