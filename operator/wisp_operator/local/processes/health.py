"""Health of a process (started, ready, hung), by the kubelet's rules for probes.

Pure: the time is an argument, so every rule is a row of a table test; :mod:`.pods` sends the requests.
A cluster probes once a period; here answers come more often, so a threshold of n failures at a period of
p seconds is read as n * p seconds of bad answers.
"""

from __future__ import annotations

from wisp_operator.local.pod_template import Probe, Template


class Health:
    """Results of one process's probes so far."""

    def __init__(self, template: Template, now: float) -> None:
        self._template = template
        self._good_at = {"startup": now, "readiness": now, "liveness": now}
        self._started = template.startup is None
        self._ready = False
        self.failed: str | None = None  # why the process must be restarted, in words

    @property
    def is_started(self) -> bool:
        """The startup probe has succeeded once; until then no other probe counts."""
        return self._started

    @property
    def is_ready(self) -> bool:
        """The process may be sent requests."""
        return self._started and (self._ready or self._template.readiness is None)

    def due(self) -> dict[str, Probe]:
        """Return the probes whose answer matters now, by kind."""
        if not self._started and self._template.startup:
            return {"startup": self._template.startup}
        probes = {"readiness": self._template.readiness, "liveness": self._template.liveness}
        return {kind: probe for kind, probe in probes.items() if probe}

    def record(self, kind: str, succeeded: bool, now: float) -> None:
        """Record the result of one probe of ``kind``, at ``now`` seconds."""
        probe = self.due().get(kind)
        if probe is None:
            return
        if succeeded:
            self._good_at[kind] = now
        overdue = now - self._good_at[kind] >= probe.failure_window_s
        if kind == "startup":
            self._record_startup(probe, succeeded, overdue, now)
        elif kind == "readiness":
            self._ready = succeeded or (self._ready and not overdue)
        elif overdue:
            self.failed = f"{probe.path} gave no good answer for {probe.failure_window_s:.0f} s"

    def _record_startup(self, probe: Probe, succeeded: bool, overdue: bool, now: float) -> None:
        if succeeded:
            self._started = True
            # The same path would give the same answer one poll later.
            self._ready = self._template.readiness is not None and self._template.readiness.path == probe.path
            self._good_at.update(readiness=now, liveness=now)
        elif overdue:
            self.failed = (
                f"it did not start within {probe.failure_window_s:.0f} s (spec.rollout.startupDeadline)"
            )
