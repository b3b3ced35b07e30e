"""Requests to the API server: credentials, one pool of connections, errors with names.

Verbs and paths only, no models. Credentials come from the ``kubernetes`` package (kubeconfig, or a
pod's service account with its rotating token); requests go through aiohttp, since the generated client's
typed models have no use for manifests that are plain maps.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from kubernetes import client, config

from wisp_operator.cluster.metrics import Metrics
from wisp_operator.errors import WispError

TIMEOUT_S = 10.0
MAX_MESSAGE_CHARS = 2048  # of a refusal, which quotes the tenant's values
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
RETRIED = (429, 500, 502, 503, 504)
BACKOFF_S = (0.1, 0.5)

Json = dict[str, Any]


class ApiError(WispError):
    """The API server refused a request, or could not be reached (``code`` 0)."""

    def __init__(self, what: str, code: int, reason: str, message: str) -> None:
        message = message[:MAX_MESSAGE_CHARS]
        self.code, self.reason, self.message = code, reason, message
        super().__init__(f"{what}: {code} {reason}: {message}" if code else f"{what}: {message}")

    @property
    def is_namespace_ending(self) -> bool:
        """Whether the namespace is being deleted, or is gone: the model goes with it."""
        ending = self.code == 403 and "being terminated" in self.message
        return ending or (self.code == 404 and self.message.startswith("namespaces "))


class Api:
    """One API server."""

    def __init__(self, metrics: Metrics) -> None:
        """Read the credentials; nothing is sent yet.

        Raises:
            ApiError: there is neither a kubeconfig nor a service account.
        """
        self._metrics = metrics
        self._configuration = _credentials()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        verb: str,
        body: Any = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
        budget: Callable[[], float] = lambda: TIMEOUT_S,
    ) -> Json:
        """Send one request, with two more tries where a retry may help.

        Args:
            verb: verb in the metrics: get, list, apply, status, event, delete, lease.
            query: parameters of the URL.
            accept: media type of the answer.
            budget: seconds that the next try may take, asked before each; raises if it may not be sent.

        Raises:
            ApiError: the server refused, or did not answer.
        """
        headers = {"Accept": accept, "Content-Type": content_type}
        for backoff_s in (*BACKOFF_S, None):
            try:
                document = await self._once(method, path, body, headers, query or {}, budget())
            except ApiError as error:
                code = "namespace-ending" if error.is_namespace_ending else str(error.code)
                self._metrics.count("api_calls", verb=verb, code=code)
                if backoff_s is None or error.code not in (0, *RETRIED):
                    raise
                await asyncio.sleep(backoff_s)
            else:
                self._metrics.count("api_calls", verb=verb, code="2xx")
                return document
        raise AssertionError("the last try raises or returns")

    async def _once(
        self,
        method: str,
        path: str,
        body: Any,
        headers: dict[str, str],
        query: Mapping[str, str],
        timeout_s: float,
    ) -> Json:
        if token := self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization"):
            headers["Authorization"] = token
        data = None if body is None else json.dumps(body)
        url = f"{self._configuration.host.rstrip('/')}{path}"
        try:
            async with self._connection().request(
                *(method, url),
                data=data,
                headers=headers,
                params=query,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                text = (await answer.read()).decode(errors="replace")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            raise ApiError(f"{method} {path}", 0, "", f"no answer: {why}") from error
        document = _parse(text)
        if answer.status >= 300:
            reason, message = document.get("reason", ""), document.get("message", text[:200])
            raise ApiError(f"{method} {path}", answer.status, str(reason), str(message))
        return document

    def _connection(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=_ssl(self._configuration), limit=32)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session


def _parse(text: str) -> Json:
    try:
        document = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _credentials() -> Any:
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            raise ApiError(
                "credentials", 0, "", f"neither a service account nor a kubeconfig was found: {error}"
            ) from error
    return configuration


def _ssl(configuration: Any) -> ssl.SSLContext | bool:
    if not configuration.verify_ssl:
        return False
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
