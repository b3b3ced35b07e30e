"""Which errors are a sentence for the user, and which exit code goes with them."""

from __future__ import annotations

from wisp_operator.errors import ManifestError, WispError
from wisp_plan.errors import PlanError

MISUSE, FAILED = 2, 1


def exit_code_of(error: BaseException) -> int | None:
    """2 where what was asked for cannot be, 1 where it failed, None where the error is a bug of ours."""
    if isinstance(error, BaseExceptionGroup):
        codes = {exit_code_of(inner) for inner in error.exceptions}
        return None if None in codes else max(code for code in codes if code is not None)
    if isinstance(error, ManifestError):
        return MISUSE
    if isinstance(error, WispError | PlanError):
        return FAILED
    return 130 if isinstance(error, KeyboardInterrupt) else None


def sentence_of(error: BaseException) -> str:
    """The message for the user; several problems stand on lines of their own."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(sentence_of(inner) for inner in error.exceptions)
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    text = str(error)
    return f"\n{text}" if isinstance(error, ManifestError) else text
