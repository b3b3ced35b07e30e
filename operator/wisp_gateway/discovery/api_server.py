"""Client of the Kubernetes API server: get, list, watch; no writes.

Not the ``kubernetes`` package: its typed models cost a second at start and 60 MB for two lists. TCP
keep-alive detects dead connections within 20 s; a watch has a deadline besides.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import aiohttp

from wisp_gateway.discovery.credentials import Credentials

Json = dict[str, Any]

TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 5.0
PAGE_OBJECTS = 500
GONE = 410
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15_000))


class ApiError(Exception):
    """The API server refused (``code``: HTTP status), or could not be reached (``code`` 0)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code


class ApiServer:
    """API server, with the credentials of one identity."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Read one document.

        Raises:
            ApiError: it does not exist, may not be read, or the server does not answer.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S), await self._open(path, query or {}) as answer:
                document = _parse(await answer.read())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._lost(error) from error
        return document

    async def list(self, path: str, query: Mapping[str, str]) -> tuple[list[Json], str]:
        """Read every object of a resource, page by page; return them and the version to watch from.

        Raises:
            ApiError: as :meth:`get`.
        """
        objects: list[Json] = []
        page = {**query, "limit": str(PAGE_OBJECTS)}
        while True:
            document = await self.get(path, page)
            metadata = document.get("metadata", {})
            objects += document.get("items") or []
            if not metadata.get("continue"):
                return objects, str(metadata.get("resourceVersion", ""))
            page["continue"] = metadata["continue"]

    async def watch(
        self, path: str, query: Mapping[str, str], version: str, window_s: int
    ) -> AsyncGenerator[Json, None]:
        """Yield the events since ``version``, until the server ends the watch after ``window_s``.

        Raises:
            ApiError: the watch broke, or the version is too old (``code`` 410).
        """
        watch_query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(window_s)}
        rest = b""
        try:
            async with await self._open(path, {**query, **watch_query, "resourceVersion": version}) as answer:
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield _event(line)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._lost(error) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _open(self, path: str, query: Mapping[str, str]) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json"}
        if token := self._credentials.token():
            headers["Authorization"] = f"Bearer {token}"
        answer = await self._connected().get(
            f"{self._credentials.url}{path}",
            params=query,
            headers=headers,
            ssl=self._credentials.tls(),
            allow_redirects=False,
        )
        if answer.status == 200:
            return answer
        async with answer:
            document = _parse(await answer.read())
        raise ApiError(answer.status, str(document.get("message") or answer.reason))

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(socket_factory=_socket)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self._session

    def _lost(self, error: Exception) -> ApiError:
        return ApiError(0, f"{self._credentials.url} does not answer: {error or type(error).__name__}")


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Create a socket that detects a dead peer by TCP keep-alive."""
    family, kind, protocol, _, _ = address
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def _parse(text: bytes) -> Json:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _event(line: bytes) -> Json:
    """Parse one event of a watch; an ERROR event raises ApiError."""
    event = _parse(line)
    if event.get("type") == "ERROR" or "object" not in event:
        status = event.get("object", {})
        raise ApiError(int(status.get("code") or 0), str(status.get("message") or "a watch said no event"))
    return event
