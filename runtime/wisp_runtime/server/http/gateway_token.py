"""Check that requests come through the gateway, which derives a token for each model.

The pod holds SHA-256 digests of its tokens, never a token (docs/contracts.md, *Tokens*). Probes and metrics
stay open: a kubelet and Prometheus send no token.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from wisp_runtime.server.api.dialects import error_response
from wisp_runtime.server.api.errors import ApiError

HEADER = b"x-wisp-token"
OPEN_PATHS = ("/livez", "/readyz", "/metrics")


class GatewayTokenCheck:
    """Refuse requests without a token of the gateway.

    Args:
        app: application behind the check.
        digests: SHA-256 digests of the accepted tokens, in hex; none turns the check off.
    """

    def __init__(self, app: ASGIApp, digests: Sequence[str]) -> None:
        self._app = app
        self._digests = tuple(bytes.fromhex(digest) for digest in digests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it before its body is read."""
        respond = self._app
        if self._digests and scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            tokens = [value for name, value in scope["headers"] if name == HEADER]
            respond = self._app if self._accepts(tokens) else _refusal(scope)
        await respond(scope, receive, send)

    def _accepts(self, tokens: Sequence[bytes]) -> bool:
        if len(tokens) != 1:
            return False
        digest = hashlib.sha256(tokens[0]).digest()
        return any(hmac.compare_digest(digest, known) for known in self._digests)


def _refusal(scope: Scope) -> Response:
    error = ApiError(
        HTTPStatus.UNAUTHORIZED,
        "This pod answers requests of Wisp's gateway alone. Send the request to the gateway's URL, which "
        "status.url of the InferenceModel shows.",
        code="gateway_only",
    )
    return error_response(error, scope)
