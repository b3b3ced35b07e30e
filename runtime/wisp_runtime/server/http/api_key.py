"""Check of API keys (``--api-key``), for a server that is reached without a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Scope

from wisp_runtime.server.api.dialects import error_response
from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.http.digest_check import DigestCheck


class ApiKeyCheck(DigestCheck):
    """Refuse requests without one of the keys."""

    def secrets_of(self, scope: Scope) -> Sequence[bytes]:
        """Return the key of ``Authorization: Bearer``, else of Anthropic's ``x-api-key``."""
        headers = dict(scope["headers"])
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        bearer = key.strip() if kind.lower() == b"bearer" else b""
        return [bearer or headers.get(b"x-api-key", b"").strip()]

    def refusal(self, scope: Scope) -> Response:
        """Return a 401 as OpenAI's API does."""
        error = ApiError(
            HTTPStatus.UNAUTHORIZED,
            "This server needs one of its API keys (--api-key): send it as Authorization: Bearer KEY.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        return error_response(error, scope)
