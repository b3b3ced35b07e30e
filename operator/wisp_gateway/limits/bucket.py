"""Token bucket that holds one number, the time at which it will be full (GCRA, ITU-T I.371). Pure.

A bucket holds a minute's amount and fills continuously. The amount is an argument, so that a limit may
change while the bucket is in use. Times are those of any clock that never goes back.
"""

from __future__ import annotations

MINUTE_S = 60.0
# Allowance for rounding errors: a request is admitted at the moment it is due. The rate stays the same.
TOLERANCE_S = 1e-3


class Bucket:
    """One bucket; full from the beginning.

    Attributes:
        full_at_s: time from which it is full; after any time that is past it is full already.
    """

    __slots__ = ("full_at_s",)

    def __init__(self, full_at_s: float = float("-inf")) -> None:
        self.full_at_s = full_at_s

    def level(self, per_minute: int, now_s: float) -> float:
        """Return the amount in it; negative: a debt."""
        return per_minute * (1 - self.refill_s(now_s) / MINUTE_S)

    def available(self, per_minute: int, now_s: float) -> int:
        """Return the whole amount in it that may be taken; 0 in debt."""
        refill_s = max(0.0, self.refill_s(now_s) - TOLERANCE_S)
        return max(0, int(per_minute * (1 - refill_s / MINUTE_S)))

    def refill_s(self, now_s: float) -> float:
        """Return the time until it is full."""
        return max(0.0, self.full_at_s - now_s)

    def wait_s(self, amount: int, per_minute: int, now_s: float) -> float:
        """Return the time until ``amount`` is in it; one above ``per_minute`` waits until it is full."""
        filled_s = MINUTE_S * (1 - min(amount, per_minute) / per_minute)
        wait_s = self.refill_s(now_s) - filled_s
        return wait_s if wait_s > TOLERANCE_S else 0.0

    def take(self, amount: int, per_minute: int, now_s: float) -> None:
        """Take ``amount``, whether it is there or not; a negative one is given back."""
        self.full_at_s = max(self.full_at_s, now_s) + MINUTE_S * amount / per_minute
