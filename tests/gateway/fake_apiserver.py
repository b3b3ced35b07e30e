"""An API server that lists objects in pages and streams watches; it can misbehave as real ones do."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import Any

from aiohttp import web

Json = dict[str, Any]

MODELS = "inferencemodels"
SLICES = "endpointslices"
SECRETS = "secrets"
GROUPS = {MODELS: "/apis/wisp.dev/v1alpha1", SLICES: "/apis/discovery.k8s.io/v1", SECRETS: "/api/v1"}
TOKEN = "first"


class FakeApiServer:
    """Objects by resource; every change is an event with a version of its own."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Json]] = {resource: {} for resource in GROUPS}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.token = TOKEN
        self.forbidden: set[str] = set()
        self.delay_s: dict[str, float] = {}
        self.page_objects = 2
        self.sends_bookmarks = True
        self.port = 0
        self._version = 100
        self._oldest = 100
        self._log: list[tuple[int, str, str, Json]] = []
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._watches: set[asyncio.BaseTransport] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_watches(self) -> int:
        return len(self._watches)

    def count(self, resource: str, *, watch: bool) -> int:
        """Requests so far that listed, or watched, a resource (a list's further pages left out)."""
        return sum(
            path.endswith(resource) and ("watch" in query) == watch and "continue" not in query
            for path, query in self.requests
        )

    async def start(self) -> None:
        app = web.Application(middlewares=[self._guard])
        for resource, group in GROUPS.items():
            app.router.add_get(f"{group}/{resource}", self._read(resource))
            app.router.add_get(f"{group}/namespaces/{{namespace}}/{resource}", self._read(resource))
            app.router.add_get(f"{group}/namespaces/{{namespace}}/{resource}/{{name}}", self._one(resource))
        self._runner = web.AppRunner(app, shutdown_timeout=0.05, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def stop(self) -> None:
        """Stop as a killed process: every connection breaks."""
        await self.end_watches()
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = None

    def put(self, resource: str, item: Json) -> None:
        key = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        kind = "MODIFIED" if key in self.objects[resource] else "ADDED"
        self._note(resource, kind, item)
        self.objects[resource][key] = item

    def drop(self, resource: str, key: str) -> None:
        self._note(resource, "DELETED", self.objects[resource].pop(key))

    def forget_history(self) -> None:
        """Compact: versions so far are too old to watch from."""
        self._oldest = self._version = self._version + 1
        self._log.clear()

    async def end_watches(self) -> None:
        """Break every watch, but go on listening."""
        while self._watches:
            self._watches.pop().abort()

    def _note(self, resource: str, kind: str, item: Json) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._log.append((self._version, resource, kind, json.loads(json.dumps(item))))
        self._changed.set()
        self._changed = asyncio.Event()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.path, dict(request.query)))
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if any(part in request.path for part in self.forbidden):
            return _status(403, f"{request.path} is forbidden")
        answer: web.StreamResponse = await handler(request)
        return answer

    def _read(self, resource: str) -> Any:
        async def read(request: web.Request) -> web.StreamResponse:
            if "watch" in request.query:
                return await self._watch(resource, request)
            return self._list(resource, request)

        return read

    def _list(self, resource: str, request: web.Request) -> web.Response:
        begin = int(request.query.get("continue", 0))
        selected = [item for item in self.objects[resource].values() if self._selects(request, item)]
        page = selected[begin : begin + self.page_objects]
        metadata = {"resourceVersion": str(self._version)}
        if begin + len(page) < len(selected):
            metadata["continue"] = str(begin + len(page))
        return web.json_response({"kind": "List", "metadata": metadata, "items": page})

    async def _watch(self, resource: str, request: web.Request) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        answer = web.StreamResponse()
        await answer.prepare(request)
        transport = request.transport
        self._watches.add(transport)
        try:
            if version < self._oldest:
                gone = {
                    "kind": "Status",
                    "code": 410,
                    "reason": "Expired",
                    "message": "too old resource version",
                }
                await answer.write(_line("ERROR", gone))
                return answer
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                    await self._stream(resource, request, answer, version)
            await self._bookmark(answer)
        except ConnectionError:
            pass  # the client or the test has closed the connection
        finally:
            self._watches.discard(transport)
        return answer

    async def _bookmark(self, answer: web.StreamResponse) -> None:
        metadata = {"resourceVersion": str(self._version)}
        if self.sends_bookmarks:
            await answer.write(_line("BOOKMARK", {"kind": "X", "metadata": metadata}))

    async def _stream(
        self, resource: str, request: web.Request, answer: web.StreamResponse, version: int
    ) -> None:
        while True:
            changed = self._changed
            for number, what, kind, item in self._log:
                if number > version and what == resource and self._selects(request, item):
                    await answer.write(_line(kind, item))
                    version = number
            await changed.wait()

    def _one(self, resource: str) -> Any:
        async def get_object(request: web.Request) -> web.Response:
            await asyncio.sleep(self.delay_s.get(resource, 0.0))
            key = "{namespace}/{name}".format(**request.match_info)
            if key not in self.objects[resource]:
                return _status(404, f'{resource} "{request.match_info["name"]}" not found')
            return web.json_response(self.objects[resource][key])

        return get_object

    def _selects(self, request: web.Request, item: Json) -> bool:
        label = request.query.get("labelSelector")
        namespace = request.match_info.get("namespace", item["metadata"]["namespace"])
        has_label = not label or label in item["metadata"].get("labels", {})
        return has_label and namespace == item["metadata"]["namespace"]


def _line(kind: str, item: Json) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


def model_object(name: str = "m", namespace: str = "ns", status: Json | None = None, **spec: Any) -> Json:
    """An InferenceModel as the API server returns it, with parts of its spec replaced."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "generation": 1,
        "creationTimestamp": "2026-01-02T03:04:05Z",
    }
    base = {"model": {"uri": "file:///srv"}}
    return {"metadata": metadata, "spec": {**base, **spec}, "status": status or {}}


def pod(name: str, address: str = "10.0.0.1", **conditions: bool) -> Json:
    """An endpoint as the EndpointSlice controller writes it."""
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


def slice_object(
    *pods: Json, model: str = "m", namespace: str = "ns", name: str = "m-1", port: int = 8000
) -> Json:
    """An EndpointSlice of a model's Service."""
    labels = {"wisp.dev/model": model, "kubernetes.io/service-name": model}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "addressType": "IPv4",
        "endpoints": list(pods),
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }


def secret_object(name: str = "keys", namespace: str = "ns", **values: str) -> Json:
    """A Secret with these values."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}
