"""Leader election: the holder of a Lease (coordination.k8s.io/v1) acts, and renews it.

No clocks of two machines are compared: a follower counts from when it last saw the Lease change, and the
leader stops by itself before any follower may begin. A Lease that nobody held before may replace one that was
deleted under a leader: its first holder renews it, but leads only once an earlier leader's time has run out.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wisp_operator.cluster.access.api_server import Api, ApiError, Json
from wisp_operator.cluster.config import OperatorConfig
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.core.times import micro_timestamp

log = logging.getLogger(__name__)

ADDRESS = "wisp.dev/address"


@dataclass
class ObservedLease:
    """The Lease as a follower last observed it.

    Attributes:
        record: holder and time of renewal, as last read.
        observed_at: monotonic seconds at which the record was first seen like this.
    """

    record: tuple[str, str] = ("", "")
    observed_at: float = 0.0

    def observe(self, spec: Json, now: float) -> None:
        """Record the ``spec`` of the Lease, read at ``now``."""
        record = (str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or ""))
        if record != self.record:
            self.record, self.observed_at = record, now

    def is_free(self, spec: Json, now: float) -> bool:
        """Whether the Lease may be taken: released, or its holder silent for as long as it lasts."""
        held = self.record[0] != ""
        return not held or now - self.observed_at >= float(spec.get("leaseDurationSeconds") or 0)


class Leader:
    """This replica's part in the election."""

    def __init__(
        self, api: Api, config: OperatorConfig, metrics: Metrics, on_started_leading: Callable[[], None]
    ) -> None:
        """Take part from :meth:`run` on; ``on_started_leading`` is called at each acquisition."""
        self._api, self._config, self._metrics = api, config, metrics
        self._on_started_leading = on_started_leading
        self._observed = ObservedLease()
        self._lease: Json | None = None
        self._valid_until = 0.0
        self._leads_from = 0.0
        self._leads = False
        self.since = 0.0
        root = f"/apis/coordination.k8s.io/v1/namespaces/{config.namespace}/leases"
        self._root, self._path = root, f"{root}/{config.lease_name}"

    @property
    def is_leader(self) -> bool:
        """Whether this replica may write now."""
        return self.remaining_s > 0

    @property
    def remaining_s(self) -> float:
        """Seconds for which this replica may still write; 0 if it may not."""
        return max(0.0, self._valid_until - time.monotonic()) if self._leads else 0.0

    @property
    def address(self) -> str:
        """Address of the leader, from the Lease last read; empty if there is none."""
        if self._lease is None or not self._lease.get("spec", {}).get("holderIdentity"):
            return ""
        return str(self._lease["metadata"].get("annotations", {}).get(ADDRESS, ""))

    async def run(self) -> None:
        """Renew or try to take the Lease until cancelled; then give it back."""
        try:
            while True:
                await self._renew_or_acquire()
                renew_s, until_leading_s = self._config.renew_s, self._leads_from - time.monotonic()
                await asyncio.sleep(min(renew_s, until_leading_s) if until_leading_s > 0 else renew_s)
        finally:
            await self._release()  # in no task of its own: kopf cancels those that it does not know

    async def _renew_or_acquire(self) -> None:
        try:
            if not await self._try(time.monotonic()) and not await self._try(time.monotonic()):
                self._valid_until = 0.0
        except ApiError as error:
            log.warning("the lease could not be renewed: %s", error)
        self._report_transition()

    async def _try(self, started: float) -> bool:
        """Renew, or take what is free; False if the Lease is no longer what was read last."""
        try:
            if (self._holds() and self._lease) or self._may_acquire(await self._read(), started):
                await self._write(started)
        except ApiError as error:
            if error.code not in (404, 409) or error.is_namespace_ending:
                raise
            self._lease = None  # deleted, or another replica was quicker
            return False
        return True

    def _holds(self) -> bool:
        return time.monotonic() < self._valid_until

    async def _read(self) -> Json:
        try:
            self._lease = await self._api.request("GET", self._path, verb="lease")
        except ApiError as error:
            if error.code != 404 or error.is_namespace_ending:
                raise
            self._lease = None
        return dict(self._lease.get("spec", {})) if self._lease else {}

    def _may_acquire(self, spec: Json, now: float) -> bool:
        self._observed.observe(spec, now)
        if spec.get("holderIdentity") not in (None, "", self._config.identity):
            self._valid_until = 0.0
        return spec.get("holderIdentity") == self._config.identity or self._observed.is_free(spec, now)

    async def _write(self, started: float) -> None:
        was_held = self._lease is not None and bool(self._lease.get("spec", {}).get("renewTime"))
        lease = self._renewed(self._config.identity)
        if self._lease is None:
            self._lease = await self._api.request("POST", self._root, verb="lease", body=lease)
        else:
            self._lease = await self._api.request("PUT", self._path, verb="lease", body=lease)
        if not self._holds():  # what was left undone in between is done by starting anew
            self._leads = False
        term_s = self._config.lease_s - self._config.renew_s
        if not was_held and not self._holds():
            self._leads_from = time.monotonic() + term_s
        self._valid_until = started + term_s

    def _renewed(self, holder: str) -> Json:
        """The Lease as this replica writes it; the resource version makes the server refuse a lost race."""
        old = self._lease or {"metadata": {}}
        spec_before = old.get("spec", {})
        changes_hands = spec_before.get("holderIdentity") != holder
        now = micro_timestamp(time.time())
        spec: dict[str, Any] = {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, math.ceil(self._config.lease_s)),
            "renewTime": now,
            "acquireTime": now if changes_hands else spec_before.get("acquireTime", now),
            "leaseTransitions": int(spec_before.get("leaseTransitions") or 0) + int(changes_hands),
        }
        metadata: dict[str, Any] = {
            "name": self._config.lease_name,
            "namespace": self._config.namespace,
            "annotations": {ADDRESS: self._config.advertise},
        }
        if version := old["metadata"].get("resourceVersion"):
            metadata["resourceVersion"] = version
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }

    def _report_transition(self) -> None:
        leads = self._holds() and time.monotonic() >= self._leads_from
        if leads == self._leads:
            return
        self._leads = leads
        if leads:
            self.since = time.time()
            self._metrics.count("takeovers")
            log.info("%s leads", self._config.identity)
            self._on_started_leading()
        else:
            log.warning("%s no longer leads", self._config.identity)

    async def _release(self) -> None:
        """Let a follower take over at once instead of after the Lease's time."""
        if not self._holds() or self._lease is None:
            return
        self._valid_until = 0.0
        try:
            await self._give_back()
            log.info("%s gave up the lead", self._config.identity)
        except ApiError as error:
            log.warning("the lease could not be given back, it runs out by itself: %s", error)

    async def _give_back(self) -> None:
        try:
            await self._api.request("PUT", self._path, verb="lease", body=self._renewed(""))
        except ApiError as error:
            # A renewal that was cancelled under way may have been written all the same.
            if error.code != 409 or (await self._read()).get("holderIdentity") != self._config.identity:
                raise
            await self._api.request("PUT", self._path, verb="lease", body=self._renewed(""))
