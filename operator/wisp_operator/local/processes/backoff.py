"""Back-off before a process that ended is started again.

Pure. A process that had been ready is restarted at once, since requests may wait for it; one that keeps
ending is tried less and less often.
"""

from __future__ import annotations

FIRST_S = 1.0
MAX_S = 60.0
FORGIVEN_AFTER_S = 60.0


def crashes_in_a_row(before: int, ready_s: float) -> int:
    """Count one more crash after ``before`` earlier ones; a good while of readiness forgives those."""
    return 1 if ready_s >= FORGIVEN_AFTER_S else before + 1


def delay_s(crashes: int, was_ready: bool) -> float:
    """Return the seconds until the next start.

    Args:
        crashes: crashes in a row.
        was_ready: whether the last process that ended had been ready.
    """
    if crashes <= 1 and was_ready:
        return 0.0
    return float(min(MAX_S, FIRST_S * 2.0 ** min(crashes - 1, 10)))
