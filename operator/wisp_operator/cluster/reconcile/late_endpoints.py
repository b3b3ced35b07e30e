"""Endpoints that Kubernetes writes late: a gateway holds requests, and misses pods that have long been ready.

After the API server was away, the EndpointSlice controller may not see its own last writes yet. It then
tries again ever more rarely, up to 1,000 s apart, however long its view has been right again; a change of the
Service makes it try at once.
Source: kubernetes v1.34, pkg/controller/endpointslice ("informer cache is out of date").
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from wisp_operator.api import InferenceModel
from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.access.writer import ClusterWriter
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.cluster.observation.caches import Caches
from wisp_operator.cluster.reconcile.blockages import concerns_all
from wisp_operator.cluster.reconcile.ownership import owned
from wisp_operator.core.demand import Report
from wisp_operator.core.observation import Observation

log = logging.getLogger(__name__)

ASKED_AT = "wisp.dev/endpoints-asked-at"
LATE_S = 3.0  # an EndpointSlice is usually written within one
PAUSE_S = 5.0  # between two changes of one Service, in the first minute
LONG_PAUSE_S = 60.0  # and after it, since then the reason is another


@dataclass(frozen=True, slots=True)
class _Requests:
    """Changes of one Service: times of the first and the last."""

    first: float
    last: float


class LateEndpoints:
    """Has Kubernetes write the endpoints of a model anew where a gateway waits for them."""

    def __init__(self, caches: Caches, writer: ClusterWriter, metrics: Metrics) -> None:
        self._caches, self._writer, self._metrics = caches, writer, metrics
        self._requests: dict[str, _Requests] = {}

    async def hasten(
        self, model: InferenceModel, observation: Observation, demand: Report, now: float
    ) -> None:
        """Change the model's Service if a gateway with waiting requests has fewer pods than are ready.

        A refusal is logged and stops no reconcile.

        Args:
            demand: the gateways' reports, summed.
            now: Unix seconds.

        Raises:
            ApiError: the API server gave no answer, or refuses more than this.
            NotLeading: another replica leads now.
        """
        since = [pod.ready_since for pod in observation.live if pod.phase == "Ready"]
        ready = sum(ready_since is not None and now - ready_since >= LATE_S for ready_since in since)
        service = next(owned([self._caches.child(_service_of(model))], model), None)
        if demand.ready is None or demand.ready >= ready or service is None:
            return
        if not self._is_due(model.key, now):
            return
        log.warning(
            "%s: a gateway knows %d of %d pods that are ready; the Service's endpoints are asked for again",
            model.key,
            demand.ready,
            ready,
        )
        self._metrics.count("endpoint_requests")
        asked_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        try:
            await self._writer.annotate("Service", model.namespace, model.name, {ASKED_AT: asked_at})
        except ApiError as error:
            if concerns_all(error):
                raise
            log.warning("%s: its Service could not be changed: %s", model.key, error)

    def forget(self, key: str) -> None:
        """Drop the state of a model that is gone."""
        self._requests.pop(key, None)

    def _is_due(self, key: str, now: float) -> bool:
        """Whether a change may be made now; True counts as made."""
        before = self._requests.get(key)
        if before is None or now - before.last > 2 * LONG_PAUSE_S:
            self._requests[key] = _Requests(now, now)
            return True
        if now - before.last < (PAUSE_S if now - before.first < LONG_PAUSE_S else LONG_PAUSE_S):
            return False
        self._requests[key] = _Requests(before.first, now)
        return True


def _service_of(model: InferenceModel) -> dict[str, Any]:
    return {"kind": "Service", "metadata": {"name": model.name, "namespace": model.namespace}}
