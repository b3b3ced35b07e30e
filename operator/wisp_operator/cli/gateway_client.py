"""Client of a gateway for the command line: its state, and a streamed answer.

Standard library only, so that ``wisp get`` and ``wisp chat`` start at once.
"""

from __future__ import annotations

import http
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from wisp_operator.errors import WispError
from wisp_operator.local import config

DEFAULT_URL = "http://127.0.0.1:8080"
STATE_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 900.0  # the gateway bounds the wait; this is for one that died


class GatewayUnreachable(WispError):
    """Nothing answers at the URL."""


class RequestRefused(WispError):
    """The gateway answered with an error; the message is its own, and so is ``code``, a word for programs."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text delta of an answer; ``is_truncated`` if the answer ends at its maximum length."""

    text: str
    is_truncated: bool = False


class GatewayClient:
    """A gateway at a URL.

    Raises:
        GatewayUnreachable: the URL is not one.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise GatewayUnreachable(
                f"{url!r} is not the URL of a gateway. Write for example --url {DEFAULT_URL}."
            )
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._key = config.api_key()

    def state(self) -> dict[str, Any]:
        """The gateway's ``/state``.

        Raises:
            GatewayUnreachable: nothing answers, or something else.
            RequestRefused: it answered with an error.
        """
        with closing(self._connection(STATE_TIMEOUT_S)) as connection:
            text = self._ask(connection, "GET", "/state", None).read()
        try:
            state = json.loads(text)
        except ValueError as error:
            raise self._is_no_gateway() from error
        if not isinstance(state, dict) or "models" not in state:
            raise self._is_no_gateway()
        return state

    def stream(
        self, model: str, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any] | None = None
    ) -> Iterator[TextDelta]:
        """Stream the text deltas of a chat's next answer; ``sampling`` goes into the request as it is.

        Raises:
            GatewayUnreachable: nothing answers, or something else, or the connection broke.
            RequestRefused: the model or the gateway refused, before or within the answer.
        """
        body = {"model": model, "messages": list(messages), "stream": True, **(sampling or {})}
        with closing(self._connection(ANSWER_TIMEOUT_S)) as connection:
            answer = self._ask(connection, "POST", "/v1/chat/completions", body)
            try:
                yield from _deltas(answer)
            except (OSError, http.client.HTTPException) as error:
                raise GatewayUnreachable(f"the answer broke off ({_cause(error)}). Ask again.") from error
            except ValueError as error:
                raise self._is_no_gateway() from error

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any
    ) -> http.client.HTTPResponse:
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise GatewayUnreachable(
                f"no gateway answers at {self.url} ({_cause(error)}). "
                "Start one with: wisp up model.yaml, or name another with --url."
            ) from error
        if answer.status == http.HTTPStatus.UNAUTHORIZED:
            raise RequestRefused(self._key_remedy(), "invalid_api_key")
        if answer.status >= 400:
            raise _refused(answer.read(), f"the gateway answered HTTP {answer.status}.")
        return answer

    def _is_no_gateway(self) -> GatewayUnreachable:
        return GatewayUnreachable(
            f"what answers at {self.url} is not a Wisp gateway. Name another with --url."
        )

    def _key_remedy(self) -> str:
        if self._key:
            return f"the gateway at {self.url} does not know the key in WISP_API_KEY. Set a valid one."
        return f"the gateway at {self.url} wants an API key. Set WISP_API_KEY to one."

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=timeout_s)


def _deltas(answer: http.client.HTTPResponse) -> Iterator[TextDelta]:
    """Read server-sent events; comments keep a held request alive and carry no text.

    Raises:
        ValueError: the answer holds no events.
    """
    line = b""
    for line in answer:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise _refused(data, str(event["error"]))
        for choice in event.get("choices", ()):
            delta = TextDelta(
                choice.get("delta", {}).get("content") or "", choice.get("finish_reason") == "length"
            )
            if delta.text or delta.is_truncated:
                yield delta
    if line.strip() and not line.startswith((b"data:", b":")):
        raise ValueError(line)
    raise RequestRefused("the answer ended in the middle. Ask again.")


def _refused(body: bytes, otherwise: str) -> RequestRefused:
    """OpenAI's error in ``body``, or ``otherwise`` where it holds none."""
    try:
        error = json.loads(body)["error"]
        return RequestRefused(str(error["message"]), str(error.get("code") or ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return RequestRefused(otherwise)


def _cause(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
