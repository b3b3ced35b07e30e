"""Read from a request body the few facts the gateway needs, by the positions of its top-level fields. Pure.

The body is scanned while it arrives and never built in memory: a C parser that builds 8 MiB of empty objects
stops an event loop for seconds. Only a short body is parsed as well, to refuse at once what is not JSON.
Every other field, and what a long body holds, is validated by the pod.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from wisp_gateway.errors import BadRequest, NotJson, UnsupportedEncoding, UnsupportedMedia
from wisp_http.json_scan import Field, JsonLimits, JsonRefused, JsonScan

# Parsing this much takes 10 ms at worst.
MAX_PARSED_BYTES = 32 * 1024
MAX_NAME_BYTES = 1024
# A pod's limits may be lower. Token ids are values: a prompt of a million is scanned in some 10 ms.
LIMITS = JsonLimits(max_values=1 << 20)
# Of a list, to see what it has: messages, or texts.
LIST_START_BYTES = 1024
ANSWER_BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
UNBOUNDED_ANSWER_TOKENS = 512
_OPENING_LIST = ord("[")


@dataclass(frozen=True)
class RequestBody:
    """A request body: received bytes, and the positions of its fields in them."""

    raw: bytes
    fields: dict[str, Field]
    object_start: int

    @property
    def is_stream(self) -> bool:
        """True if the client asked for server-sent events."""
        return self.value("stream") == b"true"

    @property
    def sequences(self) -> int:
        """Number of answers that a pod computes for it: choices times prompts, or the texts of a list."""
        return max(1, self._count("n"), self._count("best_of")) * self._prompts()

    @property
    def max_answer_tokens(self) -> int:
        """Bound of the tokens of all its answers; of one that it does not bound, what a common one has."""
        return (self._answer_bound or UNBOUNDED_ANSWER_TOKENS) * self.sequences

    @property
    def is_background(self) -> bool:
        """True of a response that is computed whether or not the client waits."""
        return self.value("background") == b"true"

    @property
    def has_answer_bound(self) -> bool:
        """True if it bounds the tokens of an answer."""
        return self._answer_bound > 0

    @property
    def _answer_bound(self) -> int:
        return max(self._count(name, digits=9) for name in ANSWER_BOUNDS)

    def model(self, *, is_named_by_path: bool) -> str | None:
        """Return the model that the body names.

        Raises:
            BadRequest: neither body nor path names a model, or it is not a string.
        """
        value = self.value("model")
        if value in (b"", b"null") and is_named_by_path:
            return None
        name = string_of(value)
        if not name:
            raise BadRequest(
                "'model' must name a model: NAME or NAMESPACE/NAME. See GET /v1/models.", param="model"
            )
        return name

    @property
    def previous_response_id(self) -> str:
        """Id of the stored response that it continues; empty: none."""
        return string_of(self.value("previous_response_id"))

    def addressable(self) -> AddressableBody:
        """Return the body as one whose ``model`` can be changed."""
        field = self.fields.get("model")
        if field is not None:
            return AddressableBody(self.raw, field.start, field.end)
        start = self.object_start + 1
        label, comma = b'"model": ', b", " if self.fields else b""
        raw = self.raw[:start] + label + comma + self.raw[start:]
        return AddressableBody(raw, start + len(label), start + len(label))

    def value(self, name: str) -> bytes:
        """Return the JSON of a top-level field; empty if it is absent."""
        field = self.fields.get(name)
        return self.raw[field.start : field.end] if field is not None else b""

    def _count(self, name: str, digits: int = 4) -> int:
        """Return a number, of choices or tokens; 0 if it is none, or one that a pod refuses."""
        count = self.value(name)
        return int(count) if count.isdigit() and len(count) <= digits else 0

    def _prompts(self) -> int:
        ranked = ("documents", "items") if {"query", "queries"} & self.fields.keys() else ()
        return max(self._listed(name) for name in ("prompt", "input", "text_2", *ranked))

    def _listed(self, name: str) -> int:
        """Return the texts, or lists of token ids, in a list; 1 for a text, and for a list of messages."""
        field = self.fields.get(name)
        if field is None or self.raw[field.start] != _OPENING_LIST:
            return 1
        beginning = self.raw[field.start + 1 : min(field.end, field.start + LIST_START_BYTES)]
        if beginning.lstrip().startswith(b"{"):
            return max(field.containers - 1, 1) if name == "documents" else 1
        return max(field.containers - 1 + field.strings, 1)


class AddressableBody:
    """A body on its way to a pod, of which one copy is kept: pods of one model may know it by several names.

    Args:
        raw: complete body.
        start, end: position of the value of ``model``.
    """

    def __init__(self, raw: bytes, start: int, end: int) -> None:
        self.raw = raw
        self._start, self._end = start, end

    def named(self, name: str) -> bytes:
        """Return the body with ``model`` as a pod knows it; the same bytes if it already is."""
        if string_of(self.raw[self._start : self._end]) != name:
            value = json.dumps(name).encode()
            self.raw = self.raw[: self._start] + value + self.raw[self._end :]
            self._end = self._start + len(value)
        return self.raw

    def drop(self) -> None:
        """Forget the bytes: the request is not sent again."""
        self.raw, self._start, self._end = b"", 0, 0


class BodyScan:
    """Scan of a body while it arrives."""

    def __init__(self) -> None:
        self._scan = JsonScan(LIMITS)
        self._size_bytes = 0
        self._refused: JsonRefused | None = None

    def feed(self, chunk: bytes) -> None:
        """Scan the next bytes.

        Raises:
            NotJson: the body is over a limit, or cannot be a JSON object.
        """
        self._size_bytes += len(chunk)
        if self._refused is None:
            try:
                self._scan.feed(chunk)
            except JsonRefused as error:
                self._refused = error
        if self._refused is not None and self._size_bytes > MAX_PARSED_BYTES:
            raise _not_json(self._refused) from self._refused

    def finish(self, raw: bytes) -> RequestBody:
        """Return the complete body.

        Raises:
            NotJson: it is not JSON, or over a limit.
            BadRequest: it is JSON, but not an object.
        """
        if len(raw) <= MAX_PARSED_BYTES:
            _check_json(raw)
        if self._refused is not None:
            raise _not_json(self._refused) from self._refused
        try:
            return RequestBody(raw, self._scan.finish(), self._scan.object_start)
        except JsonRefused as error:
            raise _not_json(error) from error


def check_media_type(content_type: str) -> None:
    """Check the content type.

    Raises:
        UnsupportedMedia: it is given and not JSON.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMedia(f"Content-Type {media_type[:100]!r} is not served; send application/json.")


def check_encoding(content_encoding: str) -> None:
    """Check that the body is sent as it is.

    Raises:
        UnsupportedEncoding: it is compressed.
    """
    if content_encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedEncoding(
            f"Content-Encoding {content_encoding[:100]!r} is not served; send the body uncompressed."
        )


def parse(raw: bytes) -> RequestBody:
    """Scan a complete body at once; raises as :class:`BodyScan` does."""
    scan = BodyScan()
    scan.feed(raw)
    return scan.finish(raw)


def _check_json(raw: bytes) -> None:
    try:
        document = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise NotJson(f"The body is not JSON: {reason}.") from error
    if not isinstance(document, dict):
        raise BadRequest(f"The body must be a JSON object, not {type(document).__name__}.")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _not_json(error: JsonRefused) -> NotJson:
    return NotJson(f"The body is not a JSON object that is served here: {error}.")


def string_of(value: bytes) -> str:
    """Decode a JSON string; empty if it is none, or too long for a name."""
    if not value.startswith(b'"') or len(value) > MAX_NAME_BYTES:
        return ""
    try:
        return str(json.loads(value))
    except ValueError:
        return ""
