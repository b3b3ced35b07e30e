"""HTTP client of runtime pods: probes and ``/state``.

A pod that does not answer raises nothing: its probe fails, its state is None.
"""

from __future__ import annotations

from typing import Any

import aiohttp

STATE_TIMEOUT_S = 1.0


class RuntimeClient:
    """Requests to pods, over one pool of connections."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(trust_env=False)

    async def probe_succeeds(self, address: str, path: str, timeout_s: float) -> bool:
        """Whether a probe succeeds: a status from 200 to 399 in time."""
        try:
            async with self._session.get(
                f"http://{address}{path}",
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as answer:
                return 200 <= answer.status < 400
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False

    async def state(self, address: str) -> dict[str, Any] | None:
        """Read the runtime's ``/state``; None while it does not answer."""
        timeout = aiohttp.ClientTimeout(total=STATE_TIMEOUT_S)
        try:
            async with self._session.get(f"http://{address}/state", timeout=timeout) as answer:
                document = await answer.json() if answer.status == 200 else None
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()
