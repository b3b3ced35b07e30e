"""Token bucket that holds one number, the time at which it will be full (GCRA, ITU-T I.371). Pure.

A bucket holds a minute's amount and fills continuously. The amount is an argument, so that a limit may
change while the bucket is in use. Times are those of any clock that never goes back.

An amount may be reserved, and be replaced later by the amount that was used: the bucket is then as if that
alone had been taken at the time of the reservation. Giving the rest back instead would fill a bucket that has
refilled meanwhile a second time. A take at ``t`` of ``c`` seconds' refill is the function
``max(full_at, t) + c``; those between two reservations are one such function, so a bucket keeps a few numbers
for each one that is open.
"""

from __future__ import annotations

from dataclasses import dataclass

MINUTE_S = 60.0
# Allowance for rounding errors: a request is admitted at the moment it is due. The rate stays the same.
TOLERANCE_S = 1e-3


@dataclass(slots=True)
class Taken:
    """One take, or several after one another: ``full_at`` becomes ``max(full_at + cost_s, least_s)``."""

    cost_s: float = 0.0
    least_s: float = float("-inf")

    def after(self, full_at_s: float) -> float:
        """Return the time at which a bucket is full after them."""
        return max(full_at_s + self.cost_s, self.least_s)

    def add(self, later: Taken) -> None:
        """Add takes that come after these."""
        self.cost_s, self.least_s = self.cost_s + later.cost_s, later.after(self.least_s)


@dataclass(slots=True, eq=False)
class Reservation:
    """A take whose amount is not final, at ``at_s``.

    Attributes:
        taken: reserved amount, and what was taken between it and the next one that is open.
        since: the latter alone.
    """

    at_s: float
    taken: Taken
    since: Taken

    def add(self, later: Taken) -> None:
        """Add takes that come after it, and before the next one that is open."""
        self.since.add(later)
        self.taken.add(later)


class Bucket:
    """One bucket; full from the beginning.

    Attributes:
        full_at_s: time from which it is full; after any time that is past it is full already.
    """

    __slots__ = ("_before_s", "_open", "full_at_s")

    def __init__(self, full_at_s: float = float("-inf")) -> None:
        self.full_at_s = full_at_s
        self._before_s = full_at_s  # as it was before the first open reservation
        self._open: list[Reservation] = []

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
        """Take ``amount``, whether it is there or not."""
        taken = _taken(amount, per_minute, now_s)
        self.full_at_s = taken.after(self.full_at_s)
        if self._open:
            self._open[-1].add(taken)

    def reserve(self, amount: int, per_minute: int, now_s: float) -> Reservation:
        """Take ``amount`` for now; to be settled once."""
        if not self._open:
            self._before_s = self.full_at_s
        reservation = Reservation(now_s, _taken(amount, per_minute, now_s), Taken())
        self._open.append(reservation)
        self.full_at_s = reservation.taken.after(self.full_at_s)
        return reservation

    def settle(self, reservation: Reservation, amount: int, per_minute: int) -> None:
        """Replace what was reserved by ``amount``, as if that had been taken then."""
        final = _taken(amount, per_minute, reservation.at_s)
        final.add(reservation.since)
        index = self._open.index(reservation)
        del self._open[index]
        if index:
            self._open[index - 1].add(final)
        else:
            self._before_s = final.after(self._before_s)
        full_at_s = self._before_s
        for still_open in self._open:
            full_at_s = still_open.taken.after(full_at_s)
        self.full_at_s = full_at_s


def _taken(amount: int, per_minute: int, at_s: float) -> Taken:
    cost_s = MINUTE_S * amount / per_minute
    return Taken(cost_s, at_s + cost_s)
