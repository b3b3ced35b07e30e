"""Routes, picks, keys, directory and metrics: values in, values out."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from wisp_gateway.discovery.key_digests import parse_keys
from wisp_gateway.discovery.snapshot import parse
from wisp_gateway.errors import DirectoryError, MethodNotAllowed, NotFound
from wisp_gateway.inbound import routes
from wisp_gateway.inbound.auth import bearer
from wisp_gateway.inbound.routes import Route
from wisp_gateway.metrics import Family, Histogram
from wisp_gateway.routing.load_balancer import Load, pick, prefix_key
from wisp_gateway.upstream.pool import answer_headers, request_head


@pytest.mark.parametrize(
    ("method", "path", "expect"),
    [
        ("POST", "/v1/chat/completions", Route("generate", "/v1/chat/completions")),
        ("POST", "/openai/v1/completions", Route("generate", "/v1/completions")),
        ("POST", "/ns/m/v1/completions", Route("generate", "/v1/completions", "ns/m")),
        ("GET", "/v1/models", Route("list")),
        ("HEAD", "/v1/models", Route("list")),
        ("GET", "/ns/m/v1/models", Route("list", model="ns/m")),
        ("GET", "/v1/models/ns/m", Route("show", id="ns/m")),
        ("GET", "/livez", Route("livez")),
        ("GET", "/v1/completions", MethodNotAllowed),
        ("DELETE", "/v1/models/m", MethodNotAllowed),
        ("POST", "/readyz", MethodNotAllowed),
        ("GET", "/", NotFound),
        ("GET", "/v1", NotFound),
        ("GET", "/v1/models/", NotFound),
        ("POST", "/v1/embeddings", NotFound),
        ("POST", "//m/v1/completions", NotFound),
        ("POST", "/a/b/c/v1/completions", NotFound),
    ],
)
def test_what_a_path_asks_for(method, path, expect):
    if isinstance(expect, Route):
        assert routes.find(method, path) == expect
    else:
        with pytest.raises(expect):
            routes.find(method, path)


def loads(*running, limit=8):
    return [Load(f"p{index}", count, limit) for index, count in enumerate(running)]


@pytest.mark.parametrize(
    ("running", "turn", "expect"),
    [
        ((3, 1, 2), 0, "p1"),
        ((1, 1, 1), 0, "p0"),
        ((1, 1, 1), 1, "p1"),  # ties go in turn
        ((1, 1, 1), 5, "p2"),
        ((8, 8, 7), 0, "p2"),
        ((8, 8, 8), 0, None),  # full: the request waits in our line, not in theirs
        ((), 0, None),
    ],
)
def test_the_least_loaded_pod_is_picked(running, turn, expect):
    assert pick(loads(*running), turn=turn) == expect


def test_one_prefix_meets_on_one_pod_and_many_prefixes_spread():
    keys = [prefix_key({"prompt": f"system {index}"}) for index in range(300)]
    idle = loads(0, 0, 0)
    assert {pick(idle, key=keys[0], turn=turn) for turn in range(9)} == {pick(idle, key=keys[0])}
    share = Counter(pick(idle, key=key) for key in keys)
    assert min(share.values()) > 60  # of 100 expected each


def test_a_pod_that_goes_moves_only_its_own_prefixes():
    keys = [prefix_key({"prompt": f"system {index}"}) for index in range(100)]
    before = {key: pick(loads(0, 0, 0), key=key) for key in keys}
    after = {key: pick(loads(0, 0), key=key) for key in keys}
    assert all(after[key] == pod for key, pod in before.items() if pod != "p2")


def test_a_favourite_over_its_share_is_passed_over():
    key = prefix_key({"prompt": "popular"})
    favourite = int(pick(loads(0, 0, 0), key=key)[1])
    running = [0, 0, 0]
    for _ in range(12):
        running[int(pick(loads(*running), key=key)[1])] += 1
    assert sum(running) == 12
    assert running[favourite] == max(running)
    assert max(running) <= 6  # 1.25 x (12 + 1) / 3, rounded up


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({"prompt": "a" * 2000}, {"prompt": "a" * 3000}, True),  # only the beginning counts
        ({"prompt": "a"}, {"prompt": "b"}, False),
        ({"prompt": [1, 2, 3]}, {"prompt": [1, 2, 4]}, False),
        (
            {"messages": [{"role": "user", "content": "x"}]},
            {"messages": [{"role": "system", "content": "x"}]},
            False,
        ),
        ({"messages": [{"content": [{"text": "x"}]}]}, {"messages": [{"content": [{"text": "y"}]}]}, False),
        ({"messages": "odd"}, {"messages": "odd"}, True),  # what is wrong with it is the pod's to say
        ({"prompt": "\ud800"}, {"prompt": "\ud800"}, True),
    ],
)
def test_the_prefix_key_is_the_prompts_beginning(one, other, is_same):
    assert (prefix_key(one) == prefix_key(other)) is is_same


def test_keys_have_names_comments_and_blanks_around_them():
    assert parse_keys("# ours\nalice: sk-a \n\nsk-bare\nbob:sk:with:colons\nempty:\n") == [
        "sk-a",
        "sk-bare",
        "sk:with:colons",
    ]


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer k", "k"), ("bearer  k ", "k"), ("Basic k", ""), ("", ""), ("Bearer", "")],
)
def test_the_token_of_an_authorization_header(header, token):
    assert bearer(header) == token


FULL = {
    "namespace": "default", "name": "m", "servedName": "s", "created": 5, "state": "Waking", "reason": "r",
    "message": "x", "phase": "weights", "progress": 0.4, "routing": "LeastLoad", "targetConcurrency": 3,
    "coldStart": {"mode": "Reject", "maxWaitSeconds": 1, "heartbeatSeconds": 2, "queueLimit": 3},
    "drainTimeoutSeconds": 60, "apiKeysFile": "/k", "somethingNewer": 1,
    "endpoints": [{"id": "e", "address": "[::1]:80", "ready": True, "draining": True}],
}  # fmt: skip


def test_a_whole_model_is_read_and_what_is_newer_than_us_is_left_alone():
    model = parse(json.dumps({"models": [FULL]}))["default/m"]
    assert (model.served_name, model.phase, model.progress, model.routing) == (
        "s",
        "weights",
        0.4,
        "LeastLoad",
    )
    assert (model.cold_start.mode, model.cold_start.max_wait_s, model.cold_start.queue_limit) == (
        "Reject",
        1,
        3,
    )
    assert (model.endpoints[0].address, model.endpoints[0].draining) == ("[::1]:80", True)
    assert model.api_keys_file == "/k"


def test_words_of_a_newer_operator_fall_back_and_freeze_no_other_model():
    newer = {**FULL, "state": "Hibernating", "routing": "RoundRobin", "coldStart": {"mode": "Queue"}}
    models = parse(json.dumps({"models": [newer, {**FULL, "name": "other"}]}))
    assert models["default/other"].routing == "LeastLoad"
    model = models["default/m"]
    assert (model.state, model.routing, model.cold_start.mode) == ("Waking", "PrefixAware", "Hold")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"state": 3}, "models[0].state: expected a string"),
        ({"name": ""}, "models[0].name: expected a string"),
        ({"coldStart": {"mode": 1}}, "models[0].coldStart.mode: expected a string, found 1"),
        ({"coldStart": []}, "models[0].coldStart: expected an object"),
        ({"targetConcurrency": 0}, "models[0].targetConcurrency: expected a whole number of at least 1"),
        ({"targetConcurrency": True}, "models[0].targetConcurrency: expected a whole number"),
        ({"endpoints": [{"id": "e", "address": "nowhere"}]}, "endpoints[0].address: expected host:port"),
        (
            {"endpoints": [{"id": "e", "address": "a:1", "ready": 1}]},
            "endpoints[0].ready: expected true or false",
        ),
        ({"endpoints": {}}, "models[0].endpoints: expected a list"),
    ],
)
def test_a_directory_that_cannot_be_names_the_field(change, complaint):
    with pytest.raises(DirectoryError) as caught:
        parse(json.dumps({"models": [{**FULL, **change}]}))
    assert complaint in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"models": 5}', '{"models": [5]}', b"\xff"])
def test_what_is_no_directory_is_said_so(text):
    with pytest.raises((DirectoryError, UnicodeDecodeError)):
        parse(text)


def test_a_label_value_cannot_break_the_line_it_is_in():
    family = Family("wisp_x_total", "X.", "model")
    family.add(2, 'a"b\\c\nd')
    assert list(family.lines())[-1] == 'wisp_x_total{model="a\\"b\\\\c\\nd"} 2'


def test_buckets_are_cumulative():
    histogram = Histogram("wisp_x_seconds", "X.", "model")
    for seconds in (0.004, 0.2, 1000):
        histogram.observe(seconds, "m")
    lines = list(histogram.lines())
    assert 'wisp_x_seconds_bucket{model="m",le="0.005"} 1' in lines
    assert 'wisp_x_seconds_bucket{model="m",le="0.25"} 2' in lines
    assert 'wisp_x_seconds_bucket{model="m",le="300"} 2' in lines
    assert 'wisp_x_seconds_bucket{model="m",le="+Inf"} 3' in lines
    assert 'wisp_x_seconds_count{model="m"} 3' in lines


def test_the_pod_never_sees_the_clients_key_nor_its_connections_headers():
    headers = [
        (b"authorization", b"Bearer secret"), (b"x-api-key", b"secret"), (b"cookie", b"secret"),
        (b"host", b"gw"),
        (b"connection", b"close, x-private"), (b"x-private", b"1"), (b"te", b"trailers"), (b"accept", b"*/*"),
        (b"transfer-encoding", b"chunked"), (b"accept-encoding", b"gzip"), (b"traceparent", b"00-1"),
    ]  # fmt: skip
    head = request_head("POST", "/v1/x", "pod:1", headers, body_bytes=3)
    lines = ["POST /v1/x HTTP/1.1", "host: pod:1", "content-length: 3", "accept: */*", "traceparent: 00-1"]
    assert head.decode() == "\r\n".join([*lines, "", ""])


def test_the_client_gets_the_pods_headers_without_framing_and_identity():
    headers = [(b"content-type", b"x"), (b"content-length", b"3"), (b"server", b"u"), (b"x-tokens", b"9")]
    assert answer_headers(headers) == [(b"content-type", b"x"), (b"x-tokens", b"9")]
