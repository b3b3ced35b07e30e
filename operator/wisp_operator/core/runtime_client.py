"""HTTP client of runtime pods: probes and ``/state``.

A pod that does not answer, or answers what it must not, raises nothing: its probe fails, its state is None.
No answer leads elsewhere (redirects are not followed), is unpacked, or is read beyond its limits.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import aiohttp

from wisp_operator.core import runtime_state
from wisp_operator.core.access.tokens import HEADER
from wisp_operator.core.runtime_state import RuntimeState

log = logging.getLogger(__name__)

STATE_TIMEOUT_S = 1.0
READ_BYTES = 16 << 10
MAX_DOCUMENT_BYTES = 8 << 20


class RuntimeClient:
    """Requests to pods, over one pool of connections."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            trust_env=False,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=0),  # the callers bound their requests
            headers={"Accept-Encoding": "identity"},
        )

    async def probe_succeeds(self, address: str, path: str, timeout_s: float) -> bool:
        """Whether a probe succeeds: a status from 200 to 399 in time."""
        try:
            async with self._session.get(
                f"http://{address}{path}",
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as answer:
                return 200 <= answer.status < 400
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return False

    async def state(self, address: str, token: str = "") -> RuntimeState | None:
        """Read a runtime's ``/state``, which may ask for a token; None while it does not answer with one."""
        try:
            return runtime_state.read(await self._body(address, token, runtime_state.MAX_BYTES))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            log.debug("no /state of %s: %r", address, error)
            return None

    async def document(self, address: str, token: str = "") -> dict[str, Any]:
        """Read the ``/state`` of our own gateway or pod as it is; empty without one."""
        try:
            document = json.loads(await self._body(address, token, MAX_DOCUMENT_BYTES))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def _body(self, address: str, token: str, max_bytes: int) -> bytes:
        """Body of ``/state``; no more is read than shows that it is longer than it may be.

        Raises:
            ValueError: it is longer, or the status is not 200.
        """
        timeout = aiohttp.ClientTimeout(total=STATE_TIMEOUT_S)
        url = f"http://{address}/state"
        headers = {HEADER: token} if token else {}
        async with self._session.get(url, timeout=timeout, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                raise ValueError(f"status {answer.status}")
            body = bytearray()
            while chunk := await answer.content.read(READ_BYTES):
                body += chunk
                if len(body) > max_bytes:
                    raise ValueError(f"more than {max_bytes >> 10} KiB")
            return bytes(body)
