"""Errors of the feed: answers to pages that wake or stop models (their tree: :mod:`wisp_gateway.errors`)."""

from __future__ import annotations

from wisp_gateway.errors import GatewayError, Unavailable


class ForeignOrigin(GatewayError):
    """A web page of another origin may not wake or stop models."""

    status, type, code = 403, "permission_error", "foreign_origin"


class StopNotAllowed(GatewayError):
    """This model is not stopped by its gateway."""

    status, type, code = 403, "permission_error", "stop_not_allowed"


class StillAsked(GatewayError):
    """Requests wait for the model that should stop."""

    status, type, code = 409, "invalid_request_error", "requests_wait"


class TooManySubscribers(Unavailable):
    """The feed has as many subscribers as it takes."""

    code = "too_many_pages"


class OperatorAway(Unavailable):
    """The program that stops models does not answer."""

    code = "operator_away"
