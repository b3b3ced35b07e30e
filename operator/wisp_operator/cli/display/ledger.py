"""A fit as a table for people: each row of the ledger with its share of the device, then the verdict."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wisp_plan.fit.verdict import Fit
from wisp_plan.hardware.gpus import DEFAULT_FRACTION
from wisp_plan.memory.ledger import Ledger
from wisp_plan.units import counted, format_size

BAR_CELLS = 16
PIPED_COLUMNS = 160
EIGHTHS = " ▏▎▍▌▋▊▉█"


def show(name: str, answer: Fit) -> None:
    """Print the ledger and the verdict of one model."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED_COLUMNS)
    console.print(Text.assemble((name, "bold"), " on ", (answer.device_name, "bold")), end="\n\n")
    console.print(_table(answer))
    mark, style = ("✓ fits", "green") if answer.fits else ("✗ does not fit", "red")
    verdict = Text.assemble((mark, f"bold {style}"), f": {answer.message}.")
    notes = [Text(line, "dim") for line in (_summary(answer), _total_note(answer)) if line]
    console.print(Text(), verdict, *notes, Text(), sep="\n", soft_wrap=True)


def bar(share: float, cells: int = BAR_CELLS) -> str:
    """A bar of ``cells`` characters, precise to an eighth of one; something never looks like nothing."""
    eighths = min(cells * 8, max(1 if share > 0 else 0, round(share * cells * 8)))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(cells)


def _table(answer: Fit) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="cyan")
    table.add_column(style="dim", no_wrap=True)
    available = max(1, answer.available_bytes)
    for row in answer.ledger.rows():
        if row.size_bytes:
            table.add_row(
                row.name, format_size(row.size_bytes), bar(row.size_bytes / available), row.explanation
            )
    total = answer.ledger.total_bytes
    style = "bold" if answer.fits else "bold red"
    table.add_row(
        Text("total", style),
        Text(format_size(total), style),
        bar(total / available),
        f"{total / available:.0%}",
    )
    kept_back = f"{answer.device_name}, less the {1 - DEFAULT_FRACTION:.0%} that stay free"
    table.add_row("available", format_size(answer.available_bytes), "", kept_back)
    return table


def _summary(answer: Fit) -> str:
    kv = _kv_cost(answer.ledger)
    if not answer.fits:
        return f"shown: {_need(answer)} · {kv}"
    full, most = answer.max_concurrent_at_context, answer.max_concurrent
    shorter = f", or up to {most} shorter ones" if most > full else ""
    at_a_time = f"at a time {counted(full, 'sequence')} of {answer.max_context} tokens{shorter}"
    return f"{at_a_time} · {kv} · {answer.quantization}"


def _kv_cost(ledger: Ledger) -> str:
    """Say what a token of context takes in the KV cache, and what a sequence takes however long it is."""
    token, windows = ledger.kv_bytes_per_context_token, ledger.kv_window_bytes
    costs = [f"{format_size(token)} of KV cache a token"] if token or not windows else []
    if windows:
        costs.append(f"{format_size(windows)} of windows a sequence")
    return ", ".join(costs)


def _need(answer: Fit) -> str:
    """Say what the minimum holds: it is of one sequence, but of as many places as steps have."""
    need, places = f"one sequence of {answer.max_context} tokens", answer.max_concurrent
    return need if places == 1 else f"{need}, in steps with room for {places} (--max-concurrent)"


def _total_note(answer: Fit) -> str:
    """Note for a total that is more than the model needs; empty otherwise."""
    if not answer.fits or answer.ledger.total_bytes <= answer.required_bytes:
        return ""
    return f"total: with the KV cache it would take for all of these · needs: {_need(answer)}"
