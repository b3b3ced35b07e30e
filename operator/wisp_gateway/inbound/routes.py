"""Parse method and path into a :class:`Route`. Pure.

``/v1/…`` and its alias ``/openai/v1/…`` find the model in the body; ``/<namespace>/<name>/v1/…`` names it.
A stored response is found by its id, which holds the tag of its pod. ``/`` is the page for a browser, whose
files are under ``/page/``; none has ``v1`` where an endpoint's path has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from wisp_gateway.errors import MethodNotAllowed, NotFound
from wisp_http.base_url import meant_path

GENERATE = {
    "chat/completions": "POST",
    "completions": "POST",
    "messages": "POST",
    "messages/count_tokens": "POST",
    "responses": "POST",
    "responses/input_tokens": "POST",
    **dict.fromkeys(("embeddings", "score", "rerank", "tokenize", "detokenize"), "POST"),
}
AS_ELSEWHERE = {
    "/score": "/v1/score",
    "/rerank": "/v1/rerank",
    "/v2/rerank": "/v2/rerank",
    "/tokenize": "/v1/tokenize",
    "/detokenize": "/v1/detokenize",
}
"""Paths as other servers have them, and those at the pod; the model is in the body."""
# Where a pod keeps what it computed of the prompt.
CACHED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
STORED = re.compile(r"responses/(?P<id>[A-Za-z0-9_-]{1,128})(?P<part>|/cancel|/input_items)")
STORED_METHODS = {"": ("GET", "DELETE"), "/cancel": ("POST",), "/input_items": ("GET",)}
OWN = ("/livez", "/readyz", "/metrics")
FEED = re.compile(
    r"/state(/(?P<part>stream|history)|/(?P<act>wake|stop)/(?P<model>[^/]{1,253}/[^/]{1,253}))?"
)
PAGE = re.compile(r"/|/page/(?P<file>[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?)")
ON_METRICS_PORT = ("/livez", "/readyz", "/metrics")


@dataclass(frozen=True)
class Route:
    """Action and model of a request.

    Args:
        action: one of ``generate``, ``stored``, ``list``, ``show``, ``livez``, ``readyz``, ``metrics``,
            ``state``, ``page``.
        path: path at the pod, for ``generate`` (``/v1/chat/completions``) and ``stored``.
        model: model named by the path (``namespace/name``), or None.
        id: id of a model, for ``show``, or of a response, for ``stored``; name of a file, for ``page``; of
            ``state`` its part, empty for the document.
    """

    action: str
    path: str = ""
    model: str | None = None
    id: str = ""


def find(method: str, path: str, *, is_metrics_port: bool = False) -> Route:
    """Return the route of ``method path``; the port of the metrics has few.

    Raises:
        NotFound: no such path.
        MethodNotAllowed: the path exists for another method.
    """
    if is_metrics_port and path not in ON_METRICS_PORT:
        raise NotFound(f"No such path on the port of the metrics: {method} {path[:200]}.")
    if path in OWN:
        return _checked(method, ("GET",), path, Route(path[1:]))
    if page := PAGE.fullmatch(path):
        return _checked(method, ("GET",), path, Route("page", id=page["file"] or "index.html"))
    if feed := FEED.fullmatch(path):
        part = feed["part"] or feed["act"] or ""
        return _checked(
            method, ("POST" if feed["act"] else "GET",), path, Route("state", model=feed["model"], id=part)
        )
    if path in AS_ELSEWHERE:
        return _checked(method, ("POST",), path, Route("generate", AS_ELSEWHERE[path]))
    model, rest = _split(path)
    if rest in GENERATE:
        return _checked(method, (GENERATE[rest],), path, Route("generate", f"/v1/{rest}", model))
    if stored := STORED.fullmatch(rest):
        allowed = STORED_METHODS[stored["part"]]
        return _checked(method, allowed, path, Route("stored", f"/v1/{rest}", model, stored["id"]))
    if rest == "models":
        return _checked(method, ("GET",), path, Route("list", model=model))
    if rest.startswith("models/") and rest != "models/":
        return _checked(method, ("GET",), path, Route("show", model=model, id=rest.removeprefix("models/")))
    raise _no_such_path(method, path)


def _split(path: str) -> tuple[str | None, str]:
    """``/a/b/v1/x`` → (``a/b``, ``x``); ``/v1/x``, ``/openai/v1/x`` → (None, ``x``); else (None, ``""``)."""
    for prefix in ("/v1/", "/openai/v1/"):
        if path.startswith(prefix):
            return None, path.removeprefix(prefix)
    parts = path.split("/", 4)
    if len(parts) == 5 and parts[1] and parts[2] and parts[3] == "v1":
        return f"{parts[1]}/{parts[2]}", parts[4]
    return None, ""


def _checked(method: str, allowed: tuple[str, ...], path: str, route: Route) -> Route:
    is_head = method == "HEAD" and "GET" in allowed and route.action != "stored"
    if method in allowed or is_head:
        return route
    raise MethodNotAllowed(f"{path} takes {' or '.join(allowed)}, not {method}.", allow=", ".join(allowed))


def _no_such_path(method: str, path: str) -> NotFound:
    if (meant := meant_path(path, has_prefixes=True)) is not None:
        return NotFound(f"No such path: {method} {path[:200]}. {meant.remedy}")
    return NotFound(
        f"No such path: {method} {path[:200]}. This gateway serves /v1/chat/completions, /v1/completions, "
        "/v1/responses, /v1/messages, /v1/embeddings, /v1/score, /v1/rerank, /v1/tokenize, /v1/detokenize "
        "and /v1/models, also under /openai and /<namespace>/<name>."
    )
