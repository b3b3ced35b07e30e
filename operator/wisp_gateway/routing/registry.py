"""All models at once: finds a request's model, gives it a place at a pod, and takes the place back.

This is where :mod:`.request_queue` and :mod:`.load_balancer` meet the clock and the futures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from wisp_gateway.discovery.snapshot import Endpoint, Snapshot
from wisp_gateway.errors import AmbiguousModel, GatewayError, ModelNotFound
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing.model_state import Desk, Pod
from wisp_gateway.routing.request_queue import Ticket


class Lease:
    """A place at a pod; leaving the ``with`` block gives it back."""

    def __init__(self, desk: Desk, pod: Pod) -> None:
        self.pod = pod
        self.endpoint: Endpoint = pod.endpoint
        self._desk: Desk | None = desk
        self._began_s = time.monotonic()
        desk.occupy(pod)

    def release(self) -> None:
        """Give the place back; a second call does nothing."""
        desk, self._desk = self._desk, None
        if desk is not None:
            desk.vacate(self.pod, time.monotonic() - self._began_s)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Fleet:
    """The desks of all models, following the directory.

    Args:
        on_wait: called with the desk whenever a request begins to wait for a pod or is turned away, and
            whenever a pod has broken a connection.
    """

    def __init__(self, metrics: Metrics, on_wait: Callable[[Desk], None]) -> None:
        self._desks: dict[str, Desk] = {}
        self._by_name: dict[str, list[str]] = {}
        self._metrics = metrics
        self._on_wait = on_wait

    def desks(self) -> list[Desk]:
        """All of them, in the directory's order."""
        return list(self._desks.values())

    def update(self, snapshot: Snapshot) -> None:
        """Take a new directory as a whole."""
        for key in self._desks.keys() - snapshot.keys():
            gone = ModelNotFound(f"Model {key} was deleted while the request waited.")
            self._desks.pop(key).close(gone)
        by_name: dict[str, list[str]] = {}
        for key, model in snapshot.items():
            for name in {model.name, model.served_name}:
                by_name.setdefault(name, []).append(key)
            if key not in self._desks:
                self._desks[key] = Desk(model, self._metrics, time.monotonic)
            if self._desks[key].model is not model or not self._desks[key].pods:
                self._desks[key].replace(model)
        self._by_name = by_name

    def find(self, name: str) -> Desk:
        """Find the model that a client means by ``namespace/name``, name or served name.

        Raises:
            ModelNotFound: there is none.
            AmbiguousModel: a bare name exists in several namespaces.
        """
        desk = self._desks.get(name)
        if desk is not None:
            return desk
        keys = self._by_name.get(name, [])
        if len(keys) == 1:
            return self._desks[keys[0]]
        if keys:
            choices = ", ".join(sorted(keys))
            raise AmbiguousModel(
                f"Model {name!r} exists in several namespaces; say which: {choices}.", param="model"
            )
        raise ModelNotFound(
            f"Model {name[:200]!r} does not exist. GET /v1/models lists those that do.", param="model"
        )

    def public_name(self, desk: Desk) -> str:
        """The id in ``/v1/models``: the served name where it is unique, else ``namespace/name``."""
        served = desk.model.served_name
        return served if self._by_name.get(served) == [desk.model.key] else desk.model.key

    def doubt(self, desk: Desk, lease: Lease) -> None:
        """Give back a place at a pod that broke its connection; it gets nothing until it answers."""
        lease.pod.answers = False
        lease.release()
        self._on_wait(desk)

    async def place(
        self, desk: Desk, key: bytes | None, *, entered_s: float, is_retry: bool = False
    ) -> Lease:
        """Wait for a place at one of the model's pods.

        Args:
            key: the prompt's prefix key, or None.
            entered_s: when the request arrived (monotonic); it is held ``coldStart.maxWait`` from then on.
            is_retry: its pod died; it goes to the head of the line.

        Raises:
            GatewayError: it may not wait, or has waited too long.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Lease] = loop.create_future()
        wait_s = desk.model.cold_start.max_wait_s - (time.monotonic() - entered_s)
        ticket = Ticket(key, entered_s, time.monotonic() + wait_s, lambda what: _settle(desk, outcome, what))
        try:
            (desk.readmit if is_retry else desk.admit)(ticket)
        finally:
            if not outcome.done():
                self._on_wait(desk)
        timer = loop.call_later(max(0.0, wait_s) + 0.001, desk.expire)
        try:
            return await outcome
        except asyncio.CancelledError:
            desk.hold.leave(ticket)
            if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
                outcome.result().release()
            raise
        finally:
            timer.cancel()


def _settle(desk: Desk, outcome: asyncio.Future[Lease], what: str | GatewayError) -> None:
    """Turn a ticket's outcome into a lease, unless its client has left in this very tick."""
    if outcome.done():
        return
    if isinstance(what, GatewayError):
        outcome.set_exception(what)
    else:
        outcome.set_result(Lease(desk, desk.pods[what]))
