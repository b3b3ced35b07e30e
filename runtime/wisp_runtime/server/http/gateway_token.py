"""Check that requests come through the gateway, which derives a token for each model.

The pod holds digests of its tokens, never a token (docs/contracts.md, *Tokens*).
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Scope

from wisp_runtime.server.api.dialects import error_response
from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.http.digest_check import DigestCheck

HEADER = b"x-wisp-token"


class GatewayTokenCheck(DigestCheck):
    """Refuse requests without a token of the gateway."""

    def secrets_of(self, scope: Scope) -> Sequence[bytes]:
        """Return the tokens of a request: a client's may stand beside the gateway's."""
        return [value for name, value in scope["headers"] if name == HEADER]

    def refusal(self, scope: Scope) -> Response:
        """Return a 401 that names the gateway."""
        error = ApiError(
            HTTPStatus.UNAUTHORIZED,
            "This pod answers requests of Wisp's gateway alone. Send the request to the gateway's URL, which "
            "status.url of the InferenceModel shows.",
            code="gateway_only",
        )
        return error_response(error, scope)
