"""Who may wait for a model, for how long, and who goes next.

Pure: time is an argument, a place is whatever ``pick`` names, and outcomes leave through each ticket's
``settle``; so every rule is one row of a table test. :mod:`.registry` adds the clock, the pods and the
futures.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wisp_gateway.discovery.snapshot import Model
from wisp_gateway.errors import (
    GatewayError,
    ModelAsleep,
    ModelFailed,
    ModelNotFound,
    ModelSuspended,
    QueueFull,
    WaitedTooLong,
)

# The official SDKs do not retry at all when told to wait longer than two minutes.
LONGEST_RETRY_S = 60
UNKNOWN_COLD_START_S = 10.0


@dataclass(eq=False)
class Ticket:
    """One request that wants a place at a pod.

    Args:
        key: digest of the prompt's first part, or None.
        entered_s, deadline_s: on the caller's monotonic clock.
        settle: called once, with the endpoint's id or with the refusal.
    """

    key: bytes | None
    entered_s: float
    deadline_s: float
    settle: Callable[[str | GatewayError], None]


Pick = Callable[[Ticket], str | None]


class Hold:
    """The bounded line of one model, first come first served."""

    def __init__(self) -> None:
        self._line: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def admit(self, ticket: Ticket, model: Model, pick: Pick, *, ready: int, retry_after_s: int) -> None:
        """Give ``ticket`` a place at once, or the end of the line.

        Args:
            ready: pods that answer now.
            retry_after_s: what a refusal tells the client.

        Raises:
            QueueFull, ModelAsleep, ModelSuspended, ModelFailed: it may not wait.
        """
        refusal = refuse_wait(model, ready=ready, retry_after_s=retry_after_s)
        if refusal is not None:
            raise refusal
        place = None if self._line else pick(ticket)
        if place is not None:
            ticket.settle(place)
        elif len(self._line) < model.cold_start.queue_limit:
            self._line.append(ticket)
        else:
            raise QueueFull(
                f"{len(self._line)} requests already wait for model {model.key} "
                f"(coldStart.queueLimit {model.cold_start.queue_limit}). Retry later, or raise the limit.",
                retry_after_s=retry_after_s,
            )

    def readmit(self, ticket: Ticket) -> None:
        """Put a ticket whose pod died at the head of the line: it has waited before, and needs no room."""
        self._line.appendleft(ticket)

    def serve(self, pick: Pick) -> None:
        """Give places from the head of the line on, until ``pick`` finds none."""
        while self._line:
            place = pick(self._line[0])
            if place is None:
                return
            self._line.popleft().settle(place)

    def review(self, model: Model | None, key: str, *, ready: int, retry_after_s: int) -> None:
        """Refuse everybody who waits, if the model (None: deleted) is no longer worth waiting for."""
        if not self._line:
            return
        refusal: GatewayError | None = ModelNotFound(f"Model {key} was deleted while the request waited.")
        if model is not None:
            refusal = refuse_wait(model, ready=ready, retry_after_s=retry_after_s, is_held=True)
        if refusal is not None:
            self.refuse_all(refusal)

    def refuse_all(self, refusal: GatewayError) -> None:
        """Tell everybody who waits the same thing."""
        while self._line:
            self._line.popleft().settle(refusal)

    def expire(self, now_s: float, model_key: str, retry_after_s: int) -> None:
        """Refuse the tickets whose deadline has passed."""
        late = [ticket for ticket in self._line if ticket.deadline_s <= now_s]
        for ticket in late:
            self._line.remove(ticket)
            waited = f"{now_s - ticket.entered_s:.3g} s"
            ticket.settle(
                WaitedTooLong(
                    f"Model {model_key} had no free pod for {waited} (coldStart.maxWait). Retry later.",
                    retry_after_s=retry_after_s,
                )
            )

    def leave(self, ticket: Ticket) -> None:
        """Forget a ticket whose client went away; its place in the line is free at once."""
        if ticket in self._line:
            self._line.remove(ticket)


def refuse_wait(
    model: Model, *, ready: int, retry_after_s: int, is_held: bool = False
) -> GatewayError | None:
    """Say why nobody may wait for ``model`` now, or None. ``is_held``: the request was let in earlier."""
    if model.state == "Suspended":
        if model.reason == "ReplicasZero":
            return ModelSuspended(f"Model {model.key} has spec.replicas 0. Scale it up to use it.")
        return ModelSuspended(f"Model {model.key} is suspended (spec.suspend). Resume it to use it.")
    if ready:
        return None
    if model.state == "Failed":
        why = ": ".join(part for part in (model.reason, model.message) if part) or "no reason given"
        return ModelFailed(f"Model {model.key} cannot start now: {why}", retry_after_s=retry_after_s)
    if model.cold_start.mode == "Reject" and not is_held:
        return ModelAsleep(
            f"Model {model.key} is waking up (coldStart.mode Reject). Retry in {retry_after_s} s.",
            retry_after_s=retry_after_s,
        )
    return None


def retry_after(*, expected_s: float | None, elapsed_s: float = 0.0) -> int:
    """Whole seconds until a retry makes sense, 1 to 60: what the last time took, less what has passed."""
    expected = UNKNOWN_COLD_START_S if expected_s is None else expected_s
    return max(1, min(LONGEST_RETRY_S, math.ceil(expected - elapsed_s)))
