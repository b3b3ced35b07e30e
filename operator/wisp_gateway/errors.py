"""Error tree of the gateway: answers to clients, and internal errors.

GatewayError                    an answer: HTTP status, OpenAI's error body, headers
├── BadRequest           400    the request is invalid
│   └── NotJson          400    the body is not JSON
├── Unauthorized         401    no key, or an unknown one
├── ForeignOrigin        403    a page of another origin wakes or stops a model (reporting/feed/errors.py)
├── StopNotAllowed       403    a model that its gateway does not stop
├── NotFound             404    no such path
│   ├── ModelNotFound    404    no such model
│   └── ResponseNotFound 404    no pod that could store it
├── MethodNotAllowed     405    the path exists, for another method
├── RequestTimeout       408    the body did not arrive within --body-timeout-s
├── StillAsked           409    requests wait for the model that should stop
├── BodyTooLarge         413    over --max-body-bytes
├── UnsupportedMedia     415    the content type is not JSON
├── UnsupportedEncoding  415    the body is compressed
├── RateLimited          429    over a key's requests a minute, or at once (limits/errors.py)
│   └── TokensLimited    429    over its tokens a minute
├── QueueFull            429    coldStart.queueLimit requests already wait
├── TooMuchHeld          429    over --max-held-bytes, or this client's or model's share of it
├── HeadersTooLarge      431    over --max-header-bytes
├── InternalError        500    a bug in the gateway
├── UpstreamFailed       502    the pod died under the request
├── DeadlineExceeded     504    not answered within x-request-timeout
└── Unavailable          503    no pod answers now
    ├── KeysUnread              the model's API keys could not be read yet
    ├── DirectoryOutdated       an unknown model, while models may be missing in the snapshot
    ├── ModelAsleep             coldStart.mode is Reject
    ├── ModelSuspended          spec.suspend
    ├── ModelFailed             it cannot be started now
    ├── WaitedTooLong           held for coldStart.maxWait
    ├── PodsRefused             pods that answer, and take none of its requests
    ├── PodUnreachable          the pod that stores a response does not answer
    ├── TooManyConnections      over --max-connections
    ├── TooManySubscribers      as many as may be follow the feed
    ├── OperatorAway            the program that stops models does not answer
    └── Stopping                the gateway is stopping
StartError                      the gateway cannot start (exit 1)
DiscoveryError                  a snapshot or object that cannot be read; the last good one stays
EndpointLost                    between the gateway and a pod; becomes a retry or an UpstreamFailed
└── EndpointRefused             the pod answered that it does not take the request
    └── EndpointFull            as many as it takes wait there already
"""

from __future__ import annotations

import json
from typing import ClassVar

Headers = list[tuple[bytes, bytes]]


class GatewayError(Exception):
    """Error answer to a client, in OpenAI's shape.

    Args:
        message: text for the user: what, where, and what to do.
        param: name of the wrong request field, if one is.
        retry_after_s: value of ``Retry-After``, in whole seconds.
    """

    status: ClassVar[int]
    type: ClassVar[str]
    code: ClassVar[str]
    is_final: bool = False  # an immediate retry would fail again
    limit: str | None = None  # of a key's limits the one that it is over, as the key's line names it

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The JSON body, on one line, so that it also fits an SSE event."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}, ensure_ascii=False).encode()

    def headers(self) -> Headers:
        """Headers beside the body: ``Retry-After``, ``x-should-retry``."""
        headers: Headers = []
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.is_final:
            headers.append((b"x-should-retry", b"false"))
        return headers


class BadRequest(GatewayError):
    """The request is invalid."""

    status, type, code = 400, "invalid_request_error", "invalid_request"


class NotJson(BadRequest):
    """The body is not JSON."""

    code = "invalid_json"


class Unauthorized(GatewayError):
    """No key, or an unknown one."""

    status, type, code = 401, "invalid_request_error", "invalid_api_key"

    def headers(self) -> Headers:
        """Name the scheme, as RFC 9110 asks of a 401."""
        return [*super().headers(), (b"www-authenticate", b"Bearer")]


class NotFound(GatewayError):
    """No such path."""

    status, type, code = 404, "invalid_request_error", "unknown_path"


class ModelNotFound(NotFound):
    """No such model."""

    code = "model_not_found"


class ResponseNotFound(NotFound):
    """No pod that could store this response, or not for this key."""

    code = "response_not_found"


class MethodNotAllowed(GatewayError):
    """The path exists, for another method."""

    status, type, code = 405, "invalid_request_error", "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> Headers:
        """Name the method that would do, as RFC 9110 asks of a 405."""
        return [*super().headers(), (b"allow", self.allow.encode())]


class RequestTimeout(GatewayError):
    """The body did not arrive within ``--body-timeout-s``."""

    status, type, code = 408, "invalid_request_error", "request_timeout"


class BodyTooLarge(GatewayError):
    """Over ``--max-body-bytes``."""

    status, type, code = 413, "invalid_request_error", "request_too_large"


class UnsupportedMedia(GatewayError):
    """The content type is not JSON."""

    status, type, code = 415, "invalid_request_error", "unsupported_media_type"


class UnsupportedEncoding(GatewayError):
    """The body is compressed."""

    status, type, code = 415, "invalid_request_error", "unsupported_content_encoding"


class QueueFull(GatewayError):
    """``coldStart.queueLimit`` requests already wait."""

    status, type, code = 429, "rate_limit_error", "queue_full"


class TooMuchHeld(GatewayError):
    """Over ``--max-held-bytes``, or this client's or model's share of it."""

    status, type, code = 429, "rate_limit_error", "too_much_held"


class HeadersTooLarge(GatewayError):
    """Over ``--max-header-bytes``."""

    status, type, code = 431, "invalid_request_error", "headers_too_large"


class InternalError(GatewayError):
    """A bug in the gateway."""

    status, type, code = 500, "server_error", "internal_error"


class UpstreamFailed(GatewayError):
    """The pod died under the request; retrying has been tried, or came too late."""

    status, type, code, is_final = 502, "server_error", "upstream_failed", True


class DeadlineExceeded(GatewayError):
    """Not answered within the ``x-request-timeout`` of its client, which has no more time for a retry."""

    status, type, code, is_final = 504, "timeout_error", "deadline_exceeded", True


class Unavailable(GatewayError):
    """No pod answers now."""

    status, type, code = 503, "server_error", "unavailable"


class KeysUnread(Unavailable):
    """The model's API keys could not be read yet."""

    code = "keys_unread"


class DirectoryOutdated(Unavailable):
    """The model is not known, and the snapshot may be older than it."""

    code = "directory_outdated"


class ModelAsleep(Unavailable):
    """``coldStart.mode`` is Reject; the model wakes meanwhile."""

    code = "model_asleep"


class ModelSuspended(Unavailable):
    """``spec.suspend`` is set."""

    code, is_final = "model_suspended", True


class ModelFailed(Unavailable):
    """The model cannot be started now; ``is_final``: not until its manifest, files or hardware change."""

    code = "model_failed"

    def __init__(self, message: str, *, is_final: bool, retry_after_s: int) -> None:
        super().__init__(message, retry_after_s=None if is_final else retry_after_s)
        self.is_final = is_final


class WaitedTooLong(Unavailable):
    """Held for ``coldStart.maxWait``."""

    code = "wait_expired"


class PodsRefused(Unavailable):
    """The model's pods answer, but take no request of this gateway: other tokens, or another model there."""

    code = "pods_refused"


class PodUnreachable(Unavailable):
    """The pod that stores a response does not answer now."""

    code = "pod_unreachable"


class TooManyConnections(Unavailable):
    """``--max-connections`` clients are already connected."""

    code = "too_many_connections"


class Stopping(Unavailable):
    """The gateway is stopping."""

    code = "gateway_stopping"


class StartError(Exception):
    """The gateway cannot start; the message is one sentence for the user."""


class DiscoveryError(Exception):
    """A snapshot or object that cannot be read; names the field."""


class EndpointLost(Exception):
    """A pod could not be reached, or closed the connection; ``was_sent``: it may have seen the request."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class EndpointRefused(EndpointLost):
    """A pod answered that it does not take the request now; it has not died of it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, was_sent=True)


class EndpointFull(EndpointRefused):
    """A pod answered that as many requests as it takes wait there already."""
