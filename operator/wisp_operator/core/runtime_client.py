"""The HTTP surface of a runtime pod, as its keeper sees it: probes and ``/state``.

Nothing here raises for a pod that does not answer: no answer is an answer.
"""

from __future__ import annotations

from typing import Any

import aiohttp

STATE_TIMEOUT_S = 1.0


class Surface:
    """Requests to pods of this machine, over one pool of connections."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(trust_env=False)

    async def is_good(self, address: str, path: str, timeout_s: float) -> bool:
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
        """The runtime's ``/state``, or None while it has none to give."""
        timeout = aiohttp.ClientTimeout(total=STATE_TIMEOUT_S)
        try:
            async with self._session.get(f"http://{address}/state", timeout=timeout) as answer:
                found = await answer.json() if answer.status == 200 else None
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()
