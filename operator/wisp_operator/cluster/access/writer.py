"""Writes of the operator to a cluster: apply, write a status, delete, emit an event.

The one place that turns a kind into a path and a manifest into a call. Every write checks first that this
replica still leads, so that two operators never write at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from wisp_operator.api import API_VERSION, KIND
from wisp_operator.cluster.access.api_server import Api, ApiError, Json
from wisp_operator.cluster.access.kinds import KINDS
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.errors import WispError

log = logging.getLogger(__name__)

MANAGER = "wisp-operator"
APPLY = "application/apply-patch+yaml"  # JSON is YAML
MERGE = "application/merge-patch+json"


class NotLeading(WispError):
    """This replica lost the lease between deciding and writing."""


class ClusterWriter:
    """Writes of the leader."""

    def __init__(self, api: Api, metrics: Metrics, may_write: Callable[[], bool]) -> None:
        self._api, self._metrics, self._may_write = api, metrics, may_write

    async def apply(self, manifest: Mapping[str, Any]) -> Json:
        """Apply ``manifest`` server-side; fields of other managers are taken over.

        Raises:
            NotLeading: another replica leads now.
            ApiError: the server refused.
        """
        return await self._patch(path_of(manifest), manifest, APPLY, "apply")

    async def write_status(self, name: str, namespace: str, status: Mapping[str, Any]) -> Json:
        """Replace the whole status of an InferenceModel; one that is gone is no error.

        Raises:
            NotLeading, ApiError: as :meth:`apply`.
        """
        identity = {"name": name, "namespace": namespace}
        document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": identity, "status": status}
        self._metrics.count("status_writes")
        return await self._patch(f"{path_of(document)}/status", document, APPLY, "status")

    async def annotate(self, kind: str, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of an object; one that is gone is no error.

        Raises:
            NotLeading, ApiError: as :meth:`apply`.
        """
        document = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}}
        change = {"metadata": {"annotations": annotations}}
        try:
            await self._patch(path_of(document), change, MERGE, "annotate")
        except ApiError as error:
            if error.code != 404:
                raise

    async def delete(self, document: Mapping[str, Any]) -> None:
        """Delete an object and what it owns; one that is gone is no error.

        Raises:
            NotLeading, ApiError: as :meth:`apply`.
        """
        self._require_leadership()
        options = {"propagationPolicy": "Background"}
        try:
            await self._api.request("DELETE", path_of(document), verb="delete", body=options)
        except ApiError as error:
            if error.code != 404:
                raise

    async def emit(self, event: Mapping[str, Any]) -> None:
        """Create an Event; one that is refused is logged, since nothing depends on it.

        Raises:
            NotLeading: as :meth:`apply`.
        """
        self._require_leadership()
        namespace = event["metadata"]["namespace"]
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        try:
            await self._api.request("POST", path, verb="event", body=event)
        except ApiError as error:
            level = logging.DEBUG if error.is_namespace_ending else logging.WARNING
            log.log(level, "an event was not recorded: %s", error)
        else:
            self._metrics.count("events", type=str(event["type"]))

    async def warnings_about(self, namespace: str, pod: str) -> list[Json]:
        """List the warnings that others, such as the kubelet, gave about a pod.

        Raises:
            ApiError: the server refused.
        """
        query = {"fieldSelector": f"involvedObject.name={pod},type=Warning", "limit": "20"}
        events = await self._api.request(
            "GET", f"/api/v1/namespaces/{namespace}/events", verb="list", query=query
        )
        return list(events.get("items") or ())

    async def _patch(self, path: str, document: Mapping[str, Any], content_type: str, verb: str) -> Json:
        self._require_leadership()
        query = {"fieldManager": MANAGER}
        if content_type == APPLY:
            query["force"] = "true"
        return await self._api.request(
            "PATCH", path, verb=verb, body=document, content_type=content_type, query=query
        )

    def _require_leadership(self) -> None:
        if not self._may_write():
            raise NotLeading("another replica of the operator leads now; it does the rest")


def path_of(document: Mapping[str, Any]) -> str:
    """The path of a namespaced object on the API server."""
    kind, metadata = KINDS[document["kind"]], document["metadata"]
    return f"{kind.root}/namespaces/{metadata['namespace']}/{kind.plural}/{metadata['name']}"
