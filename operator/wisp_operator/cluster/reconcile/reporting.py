"""Reports on a model: its status and its Events, written when they say something new."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.cluster.access.writer import ClusterWriter
from wisp_operator.cluster.observation.history import ClusterHistory
from wisp_operator.cluster.reconcile.events import EventNote, events, transitions
from wisp_operator.cluster.reconcile.status_writes import is_due, merged
from wisp_operator.core import status
from wisp_operator.core.autoscale import Decision
from wisp_operator.core.conditions import shortened
from wisp_operator.core.observation import Observation
from wisp_operator.core.times import seconds_of
from wisp_operator.core.wake_spans import WakeSpans
from wisp_operator.errors import InvalidModel

log = logging.getLogger(__name__)

REFUSED = "NotAllowed"
UNCHECKED_S = 2.0


class Reporter:
    """Writes statuses and Events of every model, as ``identity``."""

    def __init__(self, writer: ClusterWriter, identity: str, wakes: WakeSpans) -> None:
        self._writer, self._identity, self._wakes = writer, identity, wakes

    async def report(
        self,
        model: InferenceModel,
        history: ClusterHistory,
        observation: Observation,
        decision: Decision,
        now: float,
    ) -> None:
        """Write the status if it is due, and an Event for each condition that changed; update ``history``."""
        summary = status.summarise(model, observation, decision, now, history.conditions)
        self._wakes.observe(model, observation, summary, decision, now)
        document = merged(summary.to_dict(), history.written)
        if is_due(document, history.written, now - history.written_at):
            await self._writer.write_status(model.name, model.namespace, document)
            history.written, history.written_at = document, now
        notes = transitions(history.conditions, summary.conditions)
        history.conditions = summary.conditions
        for note in notes:
            log.log(
                logging.WARNING if note.type == "Warning" else logging.INFO,
                *("%s: %s: %s", model.key, note.reason, note.message),
            )
        for event in events(model, notes, now, self._identity):
            await self._writer.emit(event)

    async def report_unchecked(self, body: Mapping[str, Any], now: float) -> float | None:
        """Give a model that has no status one if its fit takes long; the seconds until that is to be done."""
        metadata = body["metadata"]
        age_s = now - (seconds_of(metadata.get("creationTimestamp")) or 0.0)
        if body.get("status") or age_s < UNCHECKED_S:
            return None if body.get("status") else UNCHECKED_S
        unchecked = status.unchecked_status(metadata["generation"], now)
        await self._writer.write_status(metadata["name"], metadata["namespace"], unchecked.to_dict())
        return None

    async def report_invalid(self, body: Mapping[str, Any], error: InvalidModel) -> None:
        """Report in status that this version of the operator cannot read the spec; keep the children."""
        metadata = body["metadata"]
        written = body.get("status", {})
        if written.get("observedGeneration") == metadata["generation"] and written.get("state") == "Failed":
            return
        invalid = status.invalid_status(error.problems, metadata["generation"], time.time())
        await self._writer.write_status(metadata["name"], metadata["namespace"], invalid.to_dict())

    async def report_refusal(self, model: InferenceModel, written: Mapping[str, Any], sentence: str) -> None:
        """Report once that the installation's policy does not allow a model.

        Args:
            written: status in the cluster.
            sentence: limits that the model exceeds, and the remedies.
        """
        sentence = shortened(sentence)
        known = {entry.get("type"): entry for entry in written.get("conditions", ())}.get("Accepted", {})
        before = (known.get("reason"), known.get("message"), known.get("observedGeneration"))
        if before == (REFUSED, sentence, model.generation):
            return
        now = time.time()
        refused = status.refused_status(REFUSED, sentence, model.generation, now)
        await self._writer.write_status(model.name, model.namespace, refused.to_dict())
        log.warning("%s: %s: %s", model.key, REFUSED, sentence)
        for event in events(model, [EventNote("Warning", REFUSED, sentence)], now, self._identity):
            await self._writer.emit(event)

    async def report_failure(
        self, body: Mapping[str, Any], history: ClusterHistory | None, error: Exception
    ) -> None:
        """Show on the model that it cannot be processed, once; the others are not concerned."""
        metadata, written = body["metadata"], body.get("status", {})
        failed = status.failed_status(written, error, metadata["generation"], time.time())
        if failed != written:
            await self._writer.write_status(metadata["name"], metadata["namespace"], failed)
        if history is not None:
            history.written = failed
