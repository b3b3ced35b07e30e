"""Limits of keys as clients meet them: headers, refusals in both dialects, the official clients' back-off."""

from __future__ import annotations

import json
import re

import anthropic
import pytest
import raw_client

from wisp_gateway.upstream import usage_report

REPORT = json.dumps(
    {
        "promptTokens": 31,
        "cachedTokens": 16,
        "completionTokens": 12,
        "finish": "stop",
        "firstTokenSeconds": 0.01,
        "perTokenSeconds": 0.001,
    }
)
ANSWER = b'{"usage": {}}'
MESSAGE = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def clock(world):
    """A clock that the test sets; the limiter reads it from :func:`limited` on."""
    return type("Clock", (), {"now_s": 1000.0, "__call__": lambda self: self.now_s})()


@pytest.fixture
def limited(world, clock):
    def start(lines, pod=None, **settings):
        (world.tmp_path / "keys").write_text(lines)
        world.model("m", world.pod(pod) if pod else world.pod())
        world.start(api_keys=world.tmp_path / "keys", **settings)
        world.gateway.app._limiter.clock = clock
        return world

    return start


def bearer(key, **headers):
    return {"authorization": f"Bearer {key}", **headers}


def chat(world, key, **more):
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **more}
    return world.post(json=body, headers=bearer(key))


def reported(usage=REPORT):
    """Return a pod whose answers report their usage to the gateway."""

    async def handle(pod, seen, writer):
        if not seen.json.get("stream"):
            writer.write(pod_answer(f"x-wisp-usage: {usage}"))
            return
        comment = usage_report.COMMENT + usage.encode()
        data = b"data: {}\n\ndata: [DONE]\n\n"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(
            head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data, comment)) + b"0\r\n\r\n"
        )

    return handle


def pod_answer(*headers):
    lines = ["HTTP/1.1 200 X", "content-type: application/json", f"content-length: {len(ANSWER)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + ANSWER


def test_answers_carry_what_is_left_and_a_key_without_limits_carries_nothing(limited):
    world = limited("a:sk-a rpm=3 tpm=6000\nfree:sk-free\n")
    first = chat(world, "sk-a", max_tokens=100)
    limits = {name: value for name, value in first.headers.items() if name.startswith("x-ratelimit")}
    reserved = 100 + -(-len(first.request.content) // 4)
    assert limits == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "20s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": str(6000 - reserved),
        "x-ratelimit-reset-tokens": f"{-(-reserved // 100)}s",
    }
    streamed = chat(world, "sk-a", stream=True)
    assert streamed.headers["x-ratelimit-remaining-requests"] == "1"
    assert not [name for name in chat(world, "sk-free").headers if "ratelimit" in name]


def test_a_refusal_says_what_and_how_long_and_costs_no_pod_and_no_wake(limited, clock):
    world = limited("a:sk-a rpm=2\n")
    assert [chat(world, "sk-a").status_code for _ in range(2)] == [200, 200]
    arrivals = world.http.get(f"{world.url}/state", headers=bearer("sk-a")).json()["models"][0]["arrivals"]
    refused = chat(world, "sk-a")
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("requests", "rate_limit_exceeded", None)
    assert "This key may send 2 requests a minute (rpm). Try again in 30 s" in error["message"]
    assert "sk-a" not in refused.text
    assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("30", "30000")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(world.pods[0].seen) == 2
    state = world.http.get(f"{world.url}/state", headers=bearer("sk-a")).json()["models"][0]
    assert state["arrivals"] == arrivals
    clock.now_s += 30
    assert chat(world, "sk-a").status_code == 200


def test_anthropics_clients_read_their_own_headers_and_errors(limited):
    world = limited("a:sk-a rpm=1\n", pod=reported())
    first = world.post("/v1/messages", json=MESSAGE, headers={"x-api-key": "sk-a"})
    assert first.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert re.fullmatch(
        r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", first.headers["anthropic-ratelimit-requests-reset"]
    )
    assert "x-ratelimit-limit-requests" not in first.headers
    client = anthropic.Anthropic(api_key="sk-a", base_url=world.url, max_retries=0)
    with pytest.raises(anthropic.RateLimitError) as caught:
        client.messages.create(**MESSAGE)
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    assert "1 requests a minute" in caught.value.body["error"]["message"]


def test_the_official_client_waits_for_retry_after_ms_and_then_succeeds(limited, clock, monkeypatch):
    waits_s = []

    def sleep(seconds):
        waits_s.append(seconds)
        clock.now_s += seconds

    world = limited("a:sk-a rpm=4\n")
    client = world.openai(api_key="sk-a", max_retries=1, timeout=60)
    for _ in range(4):
        world.chat(client=client)
    monkeypatch.setattr("openai._base_client.time.sleep", sleep)
    for _ in range(3):
        assert world.chat(client=client).choices[0].message.content == "complete"
    assert waits_s == [15.0] * 3
    assert len(world.pods[0].seen) == 7


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_count_as_the_pod_reports_them(limited, stream):
    world = limited("a:sk-a tpm=1000\n", pod=reported())
    answer = chat(world, "sk-a", max_tokens=500, stream=stream)
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 500
    world.until(lambda: left_of(world) == 1000 - 31 - 12)


def left_of(world, account="a"):
    limiter = world.gateway.app._limiter
    name = next(name for name in limiter._uses if name.endswith(f":{account}"))
    return limiter._uses[name].tokens.available(1000, limiter.clock())


def test_a_request_that_no_pod_took_costs_no_tokens_and_one_that_is_cut_off_costs_its_estimate(limited):
    world = limited("a:sk-a tpm=1000\n", pod=silent)
    leaving = raw_client.connect(world)
    body = {"model": "m", "prompt": "x", "max_tokens": 300}
    leaving.sendall(raw_client.request("/v1/completions", "authorization: Bearer sk-a", **body))
    world.until(lambda: world.pods[0].seen)
    leaving.close()
    world.until(lambda: not any(account.running for account in world.gateway.app._limiter._uses.values()))
    left = left_of(world)
    assert 600 < left < 700
    world.model("gone", state="Failed", reason="Broken")
    refused = world.post(json={"model": "gone", "prompt": "x", "max_tokens": 300}, headers=bearer("sk-a"))
    assert refused.status_code == 503
    assert left_of(world) == left


def settle_all(world):
    world.until(lambda: not any(use.running for use in world.gateway.app._limiter._uses.values()))


@pytest.mark.parametrize(("max_tokens", "events"), [(300, 3), (None, 700)])
def test_a_stream_that_is_cut_off_costs_its_prompt_and_what_was_streamed(limited, max_tokens, events):
    async def talk(pod, seen, writer):
        writer.write(world.STREAM_HEAD + world.framed(b"data: {}\n\n" * events))

    world = limited("a:sk-a tpm=1000\n", pod=talk)
    body = {"model": "m", "prompt": "x" * 400, "stream": True, "max_tokens": max_tokens}
    with world.http.stream("POST", f"{world.url}/v1/completions", json=body, headers=bearer("sk-a")) as got:
        lines = got.iter_lines()
        for _ in range(2 * events):
            next(lines)
        prompt_tokens = -(-len(got.request.content) // 4)
    settle_all(world)
    assert left_of(world) == 1000 - prompt_tokens - events


def respond(world, key, **more):
    body = {"model": "m", "input": "hello", "background": True, **more}
    return world.post("/v1/responses", json=body, headers=bearer(key))


def test_a_response_in_the_background_costs_its_longest_answer_at_once(limited, clock):
    world = limited("a:sk-a tpm=1000\n")
    created = respond(world, "sk-a", max_output_tokens=1500)
    assert created.status_code == 200
    settle_all(world)
    cost = 1500 + -(-len(created.request.content) // 4)
    refused = respond(world, "sk-a", max_output_tokens=100)
    assert refused.status_code == 429
    clock.now_s += (cost - 1000) * 60 / 1000  # its debt
    assert left_of(world) == 0
    clock.now_s += 60
    assert left_of(world) == 1000


@pytest.mark.parametrize(
    ("limits", "more", "param"),
    [
        ("tpm=1000", {}, "max_output_tokens"),
        ("tpm=1000", {"max_output_tokens": None, "stream": True}, "max_output_tokens"),
        ("concurrent=2", {"max_output_tokens": 5}, "background"),
        ("rpm=5", {}, None),
        ("tpm=1000", {"background": False}, None),
        ("concurrent=2", {"background": None}, None),
    ],
)
def test_a_response_in_the_background_that_a_limit_could_not_bound_is_refused(limited, limits, more, param):
    world = limited(f"a:sk-a {limits}\n")
    answer = respond(world, "sk-a", **more)
    assert answer.status_code == (400 if param else 200)
    if param:
        assert answer.json()["error"]["param"] == param
        assert world.pods[0].seen == []


async def silent(pod, seen, writer):
    """Read the request and answer nothing."""


def test_requests_at_once_are_bounded(limited):
    world = limited("a:sk-a concurrent=1\n", pod=silent)
    waiting = world.background(lambda: chat(world, "sk-a"))
    world.until(lambda: world.pods[0].seen)
    refused = chat(world, "sk-a")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "(concurrent)" in refused.json()["error"]["message"]
    world.call(world.gateway.app.abort)
    assert waiting.result(60).status_code == 503


LARGE = json.dumps({"model": "m", "prompt": "x" * 2000}).encode()


@pytest.mark.parametrize("path", ["/v1/completions", "/default/m/v1/completions"])
@pytest.mark.parametrize(
    "sent",
    [
        b"content-length: 2029\r\n\r\n",  # of which no byte comes
        b"transfer-encoding: chunked\r\n\r\n401\r\n" + LARGE[:1025] + b"\r\n",  # which does not end
    ],
)
def test_a_body_over_a_keys_limit_is_refused_before_it_is_there(limited, path, sent):
    world = limited("a:sk-a body=1KiB\n")
    client = raw_client.connect(world)
    head = f"POST {path} HTTP/1.1\r\nhost: gw\r\nauthorization: Bearer sk-a\r\n"
    client.sendall(head.encode() + sent)
    answer = raw_client.read_until(client, b"(body)").decode()
    assert answer.startswith("HTTP/1.1 413 ")
    assert "over 1024 bytes, which this key may send" in answer
    assert world.post("/v1/completions", content=LARGE[:900] + b'"}', headers=bearer("sk-a")).is_success


def test_the_limit_of_a_body_is_that_of_the_key_by_which_its_model_is_opened(world):
    for name, line in (
        ("small", "a:sk body=1KiB"),
        ("large", "a:sk body=4KiB"),
        ("own", "a:sk-own body=1KiB"),
    ):
        (world.tmp_path / name).write_text(line)
        world.model(name, world.pod(), apiKeysFile=str(world.tmp_path / name))
    world.start()

    def status(model, key):
        body = {"model": model, "prompt": "x" * 2000}
        return world.post("/v1/completions", json=body, headers=bearer(key)).status_code

    assert [status("small", "sk"), status("large", "sk"), status("own", "sk-own")] == [413, 200, 413]
    world.model("open", world.pod())
    assert [status("small", "sk"), status("open", "sk"), status("own", "sk-own")] == [413, 200, 413]


def test_a_restart_gives_no_key_a_second_minute(world):
    (world.tmp_path / "keys").write_text("a:sk-a rpm=2\nb:sk-b rpm=2\n")
    world.model("m", world.pod())
    settings = {"api_keys": world.tmp_path / "keys", "limits_state": world.tmp_path / "limits.json"}
    world.start(**settings)
    assert [chat(world, "sk-a").status_code for _ in range(3)] == [200, 200, 429]
    for _ in range(2):
        world.call(world.gateway.server.stop)
    world._running.result(60)
    world.start(**settings)
    assert chat(world, "sk-a").status_code == 429
    assert chat(world, "sk-b").status_code == 200
