"""Refusal of models that the installation's policy does not allow: their pods end, their status says why."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.api.types import Cache, ModelSource
from wisp_operator.cluster.access.writer import ClusterWriter
from wisp_operator.cluster.reconcile.events import EventNote, event
from wisp_operator.core import status

log = logging.getLogger(__name__)

REASON = "NotAllowed"
NO_SOURCE = ModelSource("hf://none/none")


def without_refused(model: InferenceModel) -> InferenceModel:
    """Drop from a model all that a policy may refuse, for a Deployment without pods.

    The admission policy of the chart refuses a template with a closed directory, also at zero; and whoever
    may scale the Deployment would start it.
    """
    runtime = replace(model.spec.runtime, env=())
    return replace(
        model, spec=replace(model.spec, model=NO_SOURCE, runtime=runtime, cache=Cache(type="None"))
    )


async def report_refusal(
    writer: ClusterWriter, model: InferenceModel, written: Mapping[str, Any], sentence: str, instance: str
) -> None:
    """Write the status and an Event of a refused model, unless its status says so already.

    Args:
        written: status in the cluster.
        sentence: limit that the model exceeds, and the remedy.
        instance: name of this replica.
    """
    known = {entry.get("type"): entry for entry in written.get("conditions", ())}.get("Accepted", {})
    before = (known.get("reason"), known.get("message"), known.get("observedGeneration"))
    if before == (REASON, sentence, model.generation):
        return
    now = time.time()
    refused = status.refused_status(REASON, sentence, model.generation, now)
    await writer.write_status(model.name, model.namespace, refused.to_dict())
    log.warning("%s: %s: %s", model.key, REASON, sentence)
    await writer.emit(event(model, EventNote("Warning", REASON, sentence), now, instance))
