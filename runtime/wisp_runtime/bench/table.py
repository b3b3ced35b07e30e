"""A row as a line of text."""

from __future__ import annotations

from wisp_plan.units import format_size
from wisp_runtime.bench.record import Row


def show_row(row: Row) -> str:
    """Return one line: what, at which batch and context, the number, its spread, what stands beside it."""
    where = f"batch {row.batch}" + (f", context {row.context}" if row.context else "")
    phase = f" {row.more['phase']}" if "phase" in row.more else ""
    line = f"{row.shape}  {row.metric}{phase}  {where}  {_number(row, row.value)}"
    if "p10" in row.more:
        line += f"  (p10 {_number(row, row.more['p10'])}, p90 {_number(row, row.more['p90'])})"
    if cached := row.more.get("cached"):
        line += f"  {cached} cached"
    if row.floor is not None:
        line += f"  floor {_number(row, row.floor)}"
    if row.peer_value is not None:
        line += f"  {row.peer} {_number(row, row.peer_value)}"
    if "off_percent" in row.more:
        line += f"  {row.more['off_percent']:+.2f} % of the prediction"
    return line if row.path in ("general", "reference") else f"{line}  [{row.path}]"


def _number(row: Row, value: object) -> str:
    assert isinstance(value, int | float)
    if row.metric.endswith("_bytes"):
        return format_size(int(value))
    return f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"
