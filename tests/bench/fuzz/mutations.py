"""Make hostile requests of valid ones: of their structure, bytes and heads. Each has its own seed."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from typing import Any, Literal

from bodies import BODIES, QUERIES

Stage = Literal["stays", "before the body", "mid-body", "after sending", "first byte", "mid-stream"]
LEAVES: tuple[Stage, ...] = ("before the body", "mid-body", "after sending", "first byte", "mid-stream")
LEAVING, RAW_BODY, RAW_HEAD, QUERY, UNCHANGED = 0.03, 0.08, 0.04, 0.05, 0.03
PATHS = tuple(BODIES)
WEIGHTS = [len(bodies) + 2 for bodies in BODIES.values()]
METHODS = ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "POST", "TRACE", "BREW", "get", "")
WORDS = (
    *("", "\x00", "text", "auto", "none", "required", "user", "assistant", "tool", "function", "object"),
    *("json_schema", "message", "input_text", "tool_result", "thinking", "é" * 300, "../x", "a" * 5000),
    *(
        "\ud800",
        "\udfff\ud800",
        "\u202e",
        "😀",
        "<|start|>",
        "<|end|>",
        "<think>",
        "<tool_call>",
        "forbidden",
    ),
    *("{{ 7 * 7 }}", "$ref", "(a+)+$", "[", "\\", "1e999", "NaN", "null", "tiny", "resp_x", "%s", "{ID}"),
)
NUMBERS = (
    *(0, 1, -1, 2, 3, 0.5, -0.0, 1e308, -1e308, 1e-320, 127, 128, 255, 264, 512, 513, 1 << 31, -(1 << 31)),
    *(
        1 << 53,
        1 << 63,
        (1 << 64) - 1,
        1 << 64,
        -(1 << 70),
        10**30,
        float("nan"),
        float("inf"),
        float("-inf"),
    ),
)
SCHEMAS: tuple[Any, ...] = (
    {"$ref": "#"},
    {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
    {"not": {}},
    {"type": "strange"},
    {"type": "string", "pattern": "(a{1,300}){1,300}"},
    {"type": "string", "minLength": 10**9},
    {"type": "array", "items": {"type": "integer"}, "minItems": 10**6},
    {"enum": []},
    {"enum": [1, "a", None, [], {}]},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"type": ["string", "null"], "format": "date-time"},
    {"type": "object", "patternProperties": {"[": True}},
    {"type": "integer", "multipleOf": 0},
    {"type": "integer", "minimum": 5, "maximum": 1},
    {"const": "x" * 2000},
    {"$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "$ref": "#/$defs/n"},
    True,
    False,
)
FIELDS = (
    *(
        "stream",
        "n",
        "max_tokens",
        "stop",
        "tools",
        "tool_choice",
        "response_format",
        "guided_json",
        "logprobs",
    ),
    *("guided_regex", "guided_grammar", "structured_outputs", "prompt_logprobs", "ignore_eos", "best_of"),
    *("echo", "logit_bias", "allowed_token_ids", "bad_words", "background", "store", "metadata", "input"),
    *(
        "previous_response_id",
        "thinking",
        "system",
        "documents",
        "content",
        "role",
        "type",
        "model",
        "__proto__",
    ),
    *("repetition_detection", "chat_template_kwargs", "truncate_prompt_tokens", "dimensions", "request_id"),
    *("continue_final_message", "add_generation_prompt", "skip_special_tokens", "include", "text", "strict"),
)
HEADERS = (
    *(
        b"Content-Type: text/plain",
        b"Content-Type: application/json; charset=utf-16",
        b"Content-Encoding: gzip",
    ),
    *(
        b"Expect: 100-continue",
        b"Connection: close",
        b"Connection: upgrade\r\nUpgrade: h2c",
        b"X-Request-Id: \xff\xfe",
    ),
    *(
        b"X-Wisp-Priority: high",
        b"X-Request-Id: " + b"i" * 3000,
        b"anthropic-version: 2023-06-01",
        b"Accept: */*",
    ),
    *(
        b"X: " + b"y" * 40_000,
        b"\r\n".join(b"H%d: 1" % i for i in range(250)),
        b"Range: bytes=0-1",
        b"Bad Header: 1",
    ),
    *(
        b"Transfer-Encoding: chunked",
        b"Content-Length: 3",
        b"Content-Length: -1",
        b"Content-Length: 99999999999",
    ),
    *(b"Content-Length: abc", b": empty", b"\x00: 1", b"Authorization: Bearer x", b"Accept-Encoding: gzip"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One request.

    Attributes:
        path: its endpoint as counts name it, without ids.
        method: its method, valid or not.
        head: bytes up to the body.
        body: bytes of the body.
        stage: point at which its client leaves.
        closes: whether the connection is not used again, as the server may take it for broken.
    """

    path: str
    method: str
    head: bytes
    body: bytes
    stage: Stage = "stays"
    closes: bool = False


def request_of(path: str, body: Any, stage: Stage = "stays") -> Case:
    """Return a sound request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    sized = f"{head}Content-Length: {len(content)}\r\n\r\n".encode()
    return Case(path, "POST", sized, content, stage)


def case_of(seed: int, index: int, identity: str) -> Case:
    """Return the request number ``index``; ``identity`` is the id of a response that may be stored."""
    rng = random.Random(seed << 40 | index)
    stage: Stage = rng.choice(LEAVES) if rng.random() < LEAVING else "stays"
    if rng.random() < QUERY:
        method, target = rng.choice(QUERIES)
        target = target.replace("{ID}", identity)
        if rng.random() < 0.3:
            target = _target(rng, target)
        return _case(rng, method, target, b"", stage)
    path = rng.choices(PATHS, WEIGHTS)[0]
    body = rng.choice(BODIES[path])
    if rng.random() > UNCHANGED:
        body = mutated(rng, body)
    content = encoded(rng, body).replace(b"{ID}", identity.encode())
    if rng.random() < RAW_BODY:
        content = broken_bytes(rng, content)
    return _case(rng, "POST", path, content, stage)


def _case(rng: random.Random, method: str, target: str, content: bytes, stage: Stage) -> Case:
    path, closes, length, extra = endpoint_of(target), False, len(content), b""
    if rng.random() < RAW_HEAD:
        match rng.randrange(4):
            case 0:
                method = rng.choice(METHODS)
                closes = True
            case 1:
                target, closes = _target(rng, target), True
                path = endpoint_of(target)
            case 2:
                length, closes = max(0, length + rng.choice((-7, -1, 1, 40, 10**6))), True
            case _:
                extra, closes = rng.choice(HEADERS) + b"\r\n", True
    awaits_more = length > len(content) or (not content and extra.startswith((b"Content-L", b"Transfer")))
    if awaits_more and stage not in ("before the body", "mid-body"):
        stage = "after sending"  # the server waits a minute for the rest
    line = f"{method} {target} HTTP/1.1\r\n".encode("utf-8", "surrogatepass")
    sized = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % length if content or length else b""
    head = line + b"Host: x\r\n" + extra + sized + b"\r\n"
    return Case(path, method, head, content, stage, closes)


def endpoint_of(target: str) -> str:
    """Return the endpoint of a target, its ids left out."""
    path = target.split("?", 1)[0]
    if path.startswith("/v1/responses/") and not path.endswith("/input_tokens"):
        return "/v1/responses/ID" + path[path.find("/", 14) :] * (path.find("/", 14) > 0)
    return path


def _target(rng: random.Random, target: str) -> str:
    match rng.randrange(5):
        case 0:
            return target + rng.choice(
                ("/", "//", "/../x", "?a=1", "%00", "%ff", "?stream=maybe", "?limit=-1", "?after=x")
            )
        case 1:
            return target.replace("/v1", rng.choice(("/v3", "", "/v1/v1", "/V1")), 1) or "/"
        case 2:
            return "/" + "".join(rng.choices("abc/.%?é\ud800", k=rng.randrange(1, 30)))
        case 3:
            return (
                target
                + "?"
                + "&".join(f"limit={rng.choice(NUMBERS)}&order=x" for _ in range(rng.randrange(1, 4)))
            )
        case _:
            return target + "x" * rng.choice((1, 300, 20_000))


def mutated(rng: random.Random, body: Any) -> Any:
    """Return a body with one to four of its values replaced, removed, doubled, moved or joined by others."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        places = list(_places(body))
        if not places:
            return value_of(rng)
        parent, key = rng.choice(places)
        _change(rng, parent, key, places)
    return body


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return the container and the key of each value within ``value``."""
    places, waiting = [], [value]
    while waiting:
        parent = waiting.pop()
        items = parent.items() if isinstance(parent, dict) else enumerate(parent)
        for key, item in items:
            places.append((parent, key))
            if isinstance(item, dict | list):
                waiting.append(item)
    return places


def _change(rng: random.Random, parent: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
    match rng.randrange(10):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, list):
            parent.extend([copy.deepcopy(parent[key])] * rng.choice((1, 2, 40)))
        case 1 | 2 if isinstance(parent, dict):
            parent[rng.choice(FIELDS) if rng.random() < 0.8 else rng.choice(WORDS)] = value_of(rng)
        case 3:
            source, name = rng.choice(places)
            parent[key] = copy.deepcopy(source[name]) if _has(source, name) else None
        case 4:
            parent[key] = [parent[key]]
        case 5:
            parent[key] = swapped(rng, parent[key])
        case _:
            parent[key] = value_of(rng)


def _has(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else key < len(container)


def swapped(rng: random.Random, value: Any) -> Any:
    """Return a value as another type."""
    if isinstance(value, str):
        return rng.choice((value[::-1], [value], {"text": value}, len(value), value[:2000] * 50))
    if isinstance(value, bool) or value is None:
        return rng.choice((str(value), 0, 1, [], {}))
    if isinstance(value, int | float):
        return rng.choice((str(value), float(value), -value, value * 1000, [value], True))
    return rng.choice((json.dumps(value), str(value), None, list(value), {"a": 1}))


def value_of(rng: random.Random, depth: int = 0) -> Any:
    """Return any value."""
    match rng.randrange(12 if depth < 3 else 8):
        case 0 | 1 | 2:
            return rng.choice(NUMBERS)
        case 3 | 4 | 5:
            return rng.choice(WORDS)
        case 6 | 7:
            return rng.choice((None, True, False, [], {}))
        case 8:
            return copy.deepcopy(rng.choice(SCHEMAS))
        case 9:
            return [value_of(rng, depth + 1) for _ in range(rng.randrange(4))]
        case 10:
            return {rng.choice(FIELDS): value_of(rng, depth + 1) for _ in range(rng.randrange(4))}
        case _:
            return nested(rng, rng.choice((5, 30, 70)))


def nested(rng: random.Random, depth: int) -> Any:
    """Return lists or objects within each other."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def encoded(rng: random.Random, body: Any) -> bytes:
    """Return a body as JSON, lone surrogates as escapes or as bytes."""
    if rng.random() < 0.9:
        return json.dumps(body).encode()
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


def broken_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return JSON whose bytes are broken."""
    at = rng.randrange(len(content) + 1)
    match rng.randrange(9):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + bytes(rng.choices(range(256), k=rng.randrange(1, 5))) + content[at:]
        case 2:
            return content.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-32", "utf-8-sig")))
        case 3:
            return content[:at] + content[at + rng.randrange(1, 4) :]
        case 4:
            return content[:-1] + b', "model": "tiny", "stream": true}'  # a name that comes twice
        case 5:
            return content + content[:at]
        case 6:
            return rng.choice((b"[", b'{"a":')) * rng.choice((60, 2000))
        case 7:
            return b"".join(rng.sample([content[:at], content[at:]], 2))
        case _:
            return rng.choice(
                (b"", b"null", b"[]", b"0", b'""', b"\xff\xfe", b"1" * 5000, b"-", b'"\\ud800"')
            )
