"""Writes of the operator to a cluster: apply, write a status, delete, emit an event.

The one place that turns a kind into a path and a manifest into a call. Each try of a write is sent only while
this replica leads and given up when its leadership ends, so that two operators never write at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from wisp_operator.api import API_VERSION, KIND
from wisp_operator.cluster.access.api_server import METADATA_ONLY, TIMEOUT_S, Api, ApiError, Json
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

    def __init__(self, api: Api, metrics: Metrics, leadership_s: Callable[[], float]) -> None:
        """``leadership_s`` returns the seconds for which this replica still leads; 0 if it does not."""
        self._api, self._metrics, self._leadership_s = api, metrics, leadership_s

    async def find(self, manifest: Mapping[str, Any]) -> Json | None:
        """Find the metadata of the object of this kind and name, whatever its labels; None if there is none.

        A list of one name instead of a get, since the operator needs the right to list anyway; a stranger's
        object may be large, and its metadata says whose it is.

        Raises:
            ApiError: the server refused.
        """
        folder, _, name = path_of(manifest).rpartition("/")
        query = {"fieldSelector": f"metadata.name={name}"}
        listing = await self._api.request("GET", folder, verb="find", query=query, accept=METADATA_ONLY)
        identity = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"]}
        return next((item | identity for item in listing.get("items") or ()), None)

    async def apply(self, manifest: Mapping[str, Any], over: Mapping[str, Any] | None) -> Json:
        """Apply ``manifest`` server-side.

        Args:
            over: object that may be changed, as it was last seen; fields of other managers are taken over.
                None creates one: an object that exists by then, and has other values, is a conflict.

        Raises:
            NotLeading: another replica leads now.
            ApiError: the server refused.
        """
        query = {"fieldManager": MANAGER}
        document = dict(manifest)
        if over is not None:
            query["force"] = "true"
            # The server refuses an object that is another one meanwhile.
            document["metadata"] = {**manifest["metadata"], "uid": over["metadata"]["uid"]}
        return await self._patch(path_of(manifest), document, APPLY, "apply", query)

    async def write_status(self, name: str, namespace: str, status: Mapping[str, Any]) -> Json:
        """Replace the whole status of an InferenceModel; one that is gone is no error.

        Raises:
            NotLeading, ApiError: as :meth:`apply`.
        """
        identity = {"name": name, "namespace": namespace}
        document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": identity, "status": status}
        self._metrics.count("status_writes")
        query = {"fieldManager": MANAGER, "force": "true"}
        return await self._patch(f"{path_of(document)}/status", document, APPLY, "status", query)

    async def annotate(self, kind: str, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of an object; one that is gone is no error.

        Raises:
            NotLeading, ApiError: as :meth:`apply`.
        """
        document = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}}
        change = {"metadata": {"annotations": annotations}}
        try:
            query = {"fieldManager": MANAGER}
            await self._patch(path_of(document), change, MERGE, "annotate", query)
        except ApiError as error:
            if error.code != 404:
                raise

    async def delete(self, document: Mapping[str, Any]) -> None:
        """Delete an object and what it owns; one that is gone, or another by now, is no error.

        Raises:
            NotLeading, ApiError: as :meth:`apply`.
        """
        uid = document["metadata"]["uid"]
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._write("DELETE", path_of(document), verb="delete", body=options)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def emit(self, event: Mapping[str, Any]) -> None:
        """Create an Event; one that is refused is logged, since nothing depends on it.

        Raises:
            NotLeading: as :meth:`apply`.
        """
        namespace = event["metadata"]["namespace"]
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        try:
            await self._write("POST", path, verb="event", body=event)
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

    async def _patch(
        self,
        path: str,
        document: Mapping[str, Any],
        content_type: str,
        verb: str,
        query: Mapping[str, str],
    ) -> Json:
        return await self._write(
            "PATCH", path, verb=verb, body=document, content_type=content_type, query=query
        )

    async def _write(self, method: str, path: str, **arguments: Any) -> Json:
        return await self._api.request(method, path, budget=self._budget, **arguments)

    def _budget(self) -> float:
        """Seconds that the next try of a write may take: what is left of the leadership."""
        left_s = self._leadership_s()
        if left_s <= 0:
            raise NotLeading("another replica of the operator leads now; it does the rest")
        return min(TIMEOUT_S, left_s)


def path_of(document: Mapping[str, Any]) -> str:
    """The path of a namespaced object on the API server."""
    kind, metadata = KINDS[document["kind"]], document["metadata"]
    return f"{kind.root}/namespaces/{metadata['namespace']}/{kind.plural}/{metadata['name']}"
