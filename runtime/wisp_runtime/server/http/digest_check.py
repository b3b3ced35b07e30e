"""Check that requests carry a secret of which this process holds only SHA-256 digests.

Probes and metrics stay open: a kubelet and Prometheus send none.
"""

from __future__ import annotations

import hashlib
import hmac
from abc import ABC, abstractmethod
from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = ("/livez", "/readyz", "/metrics")


class DigestCheck(ABC):
    """Refuse requests without one of the secrets.

    Args:
        app: application behind the check.
        digests: SHA-256 digests of the accepted secrets, in hex; none turns the check off.
    """

    def __init__(self, app: ASGIApp, digests: Sequence[str]) -> None:
        self._app = app
        self._digests = tuple(bytes.fromhex(digest) for digest in digests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it before its body is read."""
        respond = self._app
        if self._digests and scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            secrets = self.secrets_of(scope)
            respond = self._app if self._accepts(secrets) else self.refusal(scope)
        await respond(scope, receive, send)

    @abstractmethod
    def secrets_of(self, scope: Scope) -> Sequence[bytes]:
        """Return the secrets that a request carries; more than one is refused."""

    @abstractmethod
    def refusal(self, scope: Scope) -> Response:
        """Return the answer to a request that is refused."""

    def _accepts(self, secrets: Sequence[bytes]) -> bool:
        if len(secrets) != 1:
            return False
        digest = hashlib.sha256(secrets[0]).digest()
        return any(hmac.compare_digest(digest, known) for known in self._digests)
