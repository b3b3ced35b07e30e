"""Errors at the command line: the user's message, and the exit code."""

from __future__ import annotations

import shutil
import sys
import textwrap

from wisp_operator.errors import ManifestError, WispError
from wisp_plan.errors import PlanError

MISUSE, FAILED = 2, 1


def exit_code_of(error: BaseException) -> int | None:
    """Return 2 for misuse, 1 for a failure, None for a bug of ours."""
    if isinstance(error, BaseExceptionGroup):
        codes = {exit_code_of(inner) for inner in error.exceptions}
        return None if None in codes else max(code for code in codes if code is not None)
    if isinstance(error, ManifestError):
        return MISUSE
    if isinstance(error, WispError | PlanError):
        return FAILED
    return 130 if isinstance(error, KeyboardInterrupt) else None


def message_of(error: BaseException) -> str:
    """The message for the user: one line, but for several problems of manifests, which have one each."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(message_of(inner) for inner in error.exceptions)
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    text = str(error)
    return f"\n{text}" if isinstance(error, ManifestError) and len(error.lines) > 1 else text


def wrapped(text: str) -> str:
    """``text`` broken between words at the width of the terminal, if it goes to one."""
    if not sys.stderr.isatty():
        return text
    width = max(20, shutil.get_terminal_size().columns)
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )
