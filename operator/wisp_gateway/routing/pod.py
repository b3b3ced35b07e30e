"""One pod of a model as the gateway knows it.

Its readiness is the snapshot's, unless the gateway's own observation is newer: a pod that just died gets no
request before its ``/readyz`` answers, and one that answers gets requests before the snapshot reports it.
"""

from __future__ import annotations

import time

from wisp_gateway.discovery.snapshot import Endpoint, Model
from wisp_gateway.routing.load_balancer import EndpointLoad
from wisp_gateway.routing.prefix_record import PrefixRecord
from wisp_gateway.routing.prompt import Prompt


class Pod:
    """One endpoint, its running requests, its observed readiness, and the prompts that it was sent.

    Args:
        tag: its key in ids of responses.
    """

    def __init__(self, endpoint: Endpoint, tag: str) -> None:
        self.endpoint = endpoint
        self.tag = tag
        self.running = 0
        self.slots_used = 0
        self.sequences = 0
        self.pending_bytes = 0  # of prompts that it computes now
        self.record = PrefixRecord()
        self.observed_ready: bool | None = None  # None: as in the snapshot
        self._unknown_names: set[str] = set()
        self._paused_until_s = 0.0

    @property
    def is_ready(self) -> bool:
        """True if it takes requests, now or after a pause."""
        if self.endpoint.draining:
            return False
        return self.endpoint.ready if self.observed_ready is None else self.observed_ready

    def replace(self, endpoint: Endpoint) -> None:
        """Update from a snapshot; a changed address or readiness outdates what was observed."""
        old, self.endpoint = self.endpoint, endpoint
        if (old.address, old.ready) != (endpoint.address, endpoint.ready):
            self.observed_ready = None
            self.forget_names()
            self.record.clear()

    def mark_unhealthy(self) -> None:
        """Give it no request until it answers; whatever answers then may be another process."""
        self.observed_ready = False
        self.record.clear()

    def pause(self, duration_s: float) -> None:
        """Give it no request for a while, though it answers probes."""
        self._paused_until_s = time.monotonic() + duration_s

    @property
    def is_paused(self) -> bool:
        """True while it gets no request for a time, and no probe."""
        return time.monotonic() < self._paused_until_s

    def names_of(self, model: Model) -> list[str]:
        """Return the names by which to ask this pod: ``metadata.name`` first, which never changes.

        A runtime of an earlier release knows its served name alone, which may be the one before a change:
        the operator lists it among the model's names until no pod has it.
        """
        names = dict.fromkeys((model.name, model.served_name, *sorted(model.names)))
        return [name for name in names if name not in self._unknown_names] or list(names)

    def record_unknown(self, name: str) -> None:
        """Record that the pod answered that it does not know a name."""
        self._unknown_names.add(name)

    def forget_names(self) -> None:
        """Forget what the pod does not know: its address may be another's now."""
        self._unknown_names.clear()

    def load(self, limit: int, prompt: Prompt | None) -> EndpointLoad:
        """Return its load; with a prompt, also how much of that it has to compute."""
        id, record = self.endpoint.id, self.record
        if prompt is None:
            return EndpointLoad(id, self.slots_used, limit, self.sequences)
        matched_bytes = record.matched_bytes(prompt.chain)
        return EndpointLoad(
            id,
            self.slots_used,
            limit,
            self.sequences,
            self.pending_bytes,
            matched_bytes,
            record.evicted_bytes(prompt.size_bytes - matched_bytes),
            record.has_session(prompt.session),
        )
