"""Parse a request body for the three facts the gateway needs: model, streamed or not, prompt prefix. Pure.

Every other field is validated by the pod.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from wisp_gateway.errors import BadRequest, NotJson, UnsupportedMedia


@dataclass(frozen=True)
class RequestBody:
    """A request body: parsed JSON (``fields``) and received bytes (``raw``)."""

    fields: dict[str, Any]
    raw: bytes

    @property
    def is_stream(self) -> bool:
        """True if the client asked for server-sent events."""
        return self.fields.get("stream") is True

    def model(self, *, is_named_by_path: bool) -> str | None:
        """Return the model that the body names.

        Raises:
            BadRequest: neither body nor path names a model, or it is not a string.
        """
        name = self.fields.get("model")
        if name is None and is_named_by_path:
            return None
        if not isinstance(name, str) or not name:
            raise BadRequest(
                "'model' must name a model: NAME or NAMESPACE/NAME. See GET /v1/models.", param="model"
            )
        return name

    def with_model(self, served_name: str) -> bytes:
        """Return the body with ``model`` as the pod serves it; the received bytes if it already is."""
        if self.fields.get("model") == served_name:
            return self.raw
        try:
            return json.dumps({**self.fields, "model": served_name}, allow_nan=False).encode()
        except ValueError as error:
            raise NotJson(f"The body has a number that JSON cannot hold: {error}.") from error


def parse(raw: bytes, content_type: str) -> RequestBody:
    """Parse a body.

    Raises:
        UnsupportedMedia: the content type is given and not JSON.
        NotJson: it is not JSON.
        BadRequest: it is JSON, but not an object.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMedia(f"Content-Type {media_type[:100]!r} is not served; send application/json.")
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise NotJson(f"The body is not JSON: {reason}.") from error
    if not isinstance(fields, dict):
        raise BadRequest(f"The body must be a JSON object, not {type(fields).__name__}.")
    return RequestBody(fields, raw)
