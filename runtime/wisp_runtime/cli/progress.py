"""Progress of a long step on stderr: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from wisp_plan.units import format_size

INTERVAL_S = 5.0

OnProgress = Callable[[int, int], None]


@contextmanager
def progress(title: str, *, is_shown: bool = True) -> Iterator[OnProgress]:
    """Yield the callback for ``(bytes_done, total_bytes)``.

    Args:
        title: title of the bar and the lines.
        is_shown: whether the bar is shown at once, or from the first call on.
    """
    if not sys.stderr.isatty():
        yield _lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bars:
        bar = bars.add_task(title, total=None, visible=is_shown)
        yield lambda done, total: bars.update(bar, completed=done, total=total, visible=True)


def counted_lines(title: str) -> OnProgress:
    """Return the callback for ``(done, total)`` of countable things, which prints lines on a terminal too."""
    return _lines(title, str)


def _lines(title: str, show_amount: Callable[[int], str] = format_size) -> OnProgress:
    shown_s = -math.inf

    def show(done: int, total: int) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= INTERVAL_S or done == total:
            shown_s = time.monotonic()
            click.echo(f"{title}: {show_amount(done)} of {show_amount(total)}", err=True)

    return show


def ignore(_done: int, _total: int) -> None:
    """Show nothing."""


@contextmanager
def counted(title: str) -> Iterator[OnProgress]:
    """Yield the callback for ``(done, total)`` of countable things, such as requests."""
    if not sys.stderr.isatty():
        yield ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)
