"""Failures of a command: one line on stderr, and the process's exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from wisp_runtime.errors import RuntimeFailure


@contextmanager
def exit_on_failure(if_interrupted: str | None = None) -> Iterator[None]:
    """Report a failure inside in one line, and exit with its code.

    Args:
        if_interrupted: text of what an interruption leaves; it exits with 130 then. None: it passes.
    """
    try:
        yield
    except RuntimeFailure as error:
        click.echo(f"wisp-runtime: {error.reason}: {error.message}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        if if_interrupted is None:
            raise
        click.echo(f"interrupted; {if_interrupted}", err=True)
        sys.exit(130)
