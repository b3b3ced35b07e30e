"""A server's life: loading, ready, draining, failing; clients that leave or read slowly."""

import json
import socket
import threading
import time
from functools import partial

import httpx
import pytest
from fake_engine import END, live_server, tokens_of, write_model

from wisp_runtime.engine.transport.messages import ExpertReport, Fatal, Load, Phase
from wisp_runtime.server.api import generation
from wisp_runtime.server.engine_monitor import wait_for_silence
from wisp_runtime.server.error_budget import ErrorBudget
from wisp_runtime.server.http import server as http_server

CHAT = "/v1/chat/completions"
HEAD = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def post_later(server, body, results, deaths=None):
    """Post in a thread; append (status, text) to ``results``, the header ``x-wisp-died`` to ``deaths``."""
    deaths = [] if deaths is None else deaths

    def post():
        response = httpx.post(server.url + CHAT, json=body, timeout=60)
        results.append((response.status_code, response.text))
        deaths.append(response.headers.get("x-wisp-died"))

    thread = threading.Thread(target=post)
    thread.start()
    return thread


def busy(server, tokens=200, delay_s=0.01):
    server.engine.script = lambda _: [*tokens_of("x" * tokens), END]
    server.engine.delay_s = delay_s


def test_health_responds_while_the_model_loads_and_requests_get_503(tiny_model):
    with live_server(tiny_model, is_ready=False) as server, httpx.Client(base_url=server.url) as client:
        assert client.get("/livez").status_code == 200
        assert client.get("/metrics").status_code == 200
        assert client.get("/readyz").status_code == 503
        for phase, status in (("import", "starting"), ("weights", "loading"), ("firstToken", "warming")):
            server.engine.phases = (Phase(phase),)
            assert client.get("/readyz").json() == {"status": status, "phase": phase}
            assert client.get("/state").json()["status"] == status
        refused = client.post(CHAT, json=ASK)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert refused.json()["error"]["code"] == "model_not_ready"
        server.call(server.engine.become_ready)
        server.wait_until(lambda: client.get("/readyz").status_code == 200)
        assert client.post(CHAT, json=ASK).status_code == 200


def test_state_is_as_the_contracts_page_shows_it(api, server):
    server.engine.load = Load(1, 2, 3, 64, 5, 6, 7, 8)
    state = api.get("/state").json()
    assert state["path"].endswith("/tiny")
    assert {name: state[name] for name in ("model", "status", "device", "kernels", "ledger", "error")} == {
        "model": "tiny",
        "status": "ready",
        "device": "cpu",
        "kernels": {"set": "fake"},
        "ledger": {"totalBytes": 1},
        "error": None,
    }
    assert state["phases"] == [
        {"name": "import", "seconds": 0.1, "state": "done", "bytes": 0, "totalBytes": 0}
    ]
    assert state["load"] | {"tokensPerSecond": 0} == {
        "waiting": 1,
        "running": 2,
        "kvBlocksUsed": 3,
        "kvBlocksTotal": 64,
        "generatedTokensTotal": 8,
        "promptTokensTotal": 6,
        "cachedTokensTotal": 7,
        "tokensPerSecond": 0,
        "steps": 5,
    }


def test_the_load_of_experts_is_read_at_each_scrape_and_absent_without_experts(api, server):
    assert "wisp_expert_tokens_total{" not in api.get("/metrics").text
    server.engine.next_report = ExpertReport((7, 3), hits=7, passes=6, busiest=((1, 1.5), (3, 1.0)))
    lines = set(api.get("/metrics").text.splitlines())
    assert lines >= {
        'wisp_expert_tokens_total{model_name="tiny",expert="0"} 7',
        'wisp_expert_tokens_total{model_name="tiny",expert="1"} 3',
        'wisp_experts_hit_total{model_name="tiny"} 7',
        'wisp_expert_passes_total{model_name="tiny"} 6',
        'wisp_expert_busiest_ratio{model_name="tiny",layer="1"} 1.5',
        "# TYPE wisp_expert_passes_total counter",
        "# TYPE wisp_expert_busiest_ratio gauge",
    }
    server.engine.next_report = None
    api.get("/metrics")


def test_metrics_have_our_names_and_those_of_the_inference_extension(api, server):
    server.engine.load = Load(waiting=1, running=2, kv_blocks_used=16, kv_blocks_total=64)
    api.post(CHAT, json=ASK)
    lines = set(api.get("/metrics").text.splitlines())
    assert lines >= {
        'wisp_sequences_waiting{model_name="tiny"} 1',
        'vllm:num_requests_waiting{model_name="tiny",engine="0"} 1',
        'vllm:num_requests_running{model_name="tiny",engine="0"} 2',
        'vllm:kv_cache_usage_perc{model_name="tiny",engine="0"} 0.25',
        'vllm:cache_config_info{model_name="tiny",engine="0",block_size="16",num_gpu_blocks="64"} 1',
        'wisp_startup_seconds{model_name="tiny",phase="import"} 0.1',
        "# TYPE wisp_time_to_first_token_seconds histogram",
        "# TYPE wisp_generation_tokens_total counter",
    }
    text = "\n".join(lines)
    assert 'wisp_sequences_finished_total{model_name="tiny",finished_reason="stop"}' in text
    assert f'wisp_http_responses_total{{model_name="tiny",path="{CHAT}",status="200"}}' in text
    assert "wisp_time_per_output_token_seconds_bucket" in text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_aborts_its_sequence(api, server, stream):
    busy(server, tokens=2000)
    body = json.dumps(ASK | {"stream": stream}).encode()
    head = HEAD % (CHAT.encode(), len(body))
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) as client:
        client.sendall(head + body)
        if stream:
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        server.wait_until(lambda: bool(server.engine.submitted))
    server.wait_until(lambda: bool(server.engine.aborted))
    assert server.engine.aborted == [server.engine.submitted[0].request_id]
    server.wait_until(lambda: server.server.service.active == 0)


def test_a_client_that_leaves_before_the_first_token_aborts_its_stream(api, server):
    busy(server, delay_s=30)
    body = json.dumps(ASK | {"stream": True, "n": 2}).encode()
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) as client:
        client.sendall(HEAD % (CHAT.encode(), len(body)) + body)
        server.wait_until(lambda: len(server.engine.submitted) == 2)
    server.wait_until(lambda: len(server.engine.aborted) == 2)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_mistake_of_ours(api, server, caplog):
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) as client:
        client.sendall(HEAD % (CHAT.encode(), 1000) + b'{"model"')
        server.wait_until(lambda: len(server.server._web.server_state.tasks) == 1)
        assert server.server.service.active == 0  # it counts from the last byte of its body
    server.wait_until(lambda: not server.server._web.server_state.tasks)
    assert 'status="500"' not in api.get("/metrics").text
    assert not caplog.records


def test_a_client_that_does_not_read_stalls_nobody_else(api, server):
    def script(submit):
        return tokens_of("y" * 400) if submit.max_tokens > 100 else [*tokens_of("quick"), END]

    server.engine.script = script
    body = json.dumps(ASK | {"stream": True, "n": 64, "max_tokens": 400}).encode()
    head = HEAD % (CHAT.encode(), len(body))
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
        stalled.sendall(head + body)
        server.wait_until(lambda: len(server.engine.submitted) == 64)
        answer = api.post(CHAT, json=ASK | {"max_tokens": 50})
        assert answer.json()["choices"][0]["message"]["content"] == "quick"
        assert server.server.service.active == 1  # the stalled one still waits for its reader


@pytest.mark.parametrize(
    ("fields", "aborted"),
    [
        ({"n": 64}, 32),
        ({"logprobs": True, "top_logprobs": 20}, 0),  # one choice, whose tokens take more
    ],
)
def test_choices_that_nobody_reads_end_before_they_fill_the_memory(api, server, monkeypatch, fields, aborted):
    monkeypatch.setattr(generation, "MAX_BACKLOG", 2000)
    server.engine.script = lambda _: tokens_of("y" * 400)
    body = json.dumps(ASK | {"stream": True, "max_tokens": 400} | fields).encode()
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
        stalled.sendall(HEAD % (CHAT.encode(), len(body)) + body)
        server.wait_until(lambda: len(server.engine.aborted) > aborted)


def test_a_stop_lets_running_requests_finish_and_refuses_new_ones(tiny_model):
    with live_server(tiny_model, drain_timeout_s=10) as server:
        busy(server, tokens=60)
        results = []
        running = post_later(server, ASK, results)
        server.wait_until(lambda: bool(server.engine.submitted))
        server.stop()
        with httpx.Client(base_url=server.url) as client:
            server.wait_until(lambda: client.get("/readyz").json()["status"] == "draining")
            refused = client.post(CHAT, json=ASK)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_stopping")
        assert refused.headers["retry-after"] == "1"
        assert server.join() is None
        running.join()
    ((status, text),) = results
    assert (status, json.loads(text)["choices"][0]["finish_reason"]) == (200, "stop")


@pytest.mark.parametrize(("drain_timeout_s", "skips_wait"), [(0.1, False), (600, True)])
@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_exceed_the_drain_timeout_end_with_an_error(
    tiny_model, drain_timeout_s, skips_wait, stream
):
    with live_server(tiny_model, drain_timeout_s=drain_timeout_s) as server:
        busy(server, tokens=5000)
        results = []
        running = post_later(server, ASK | {"stream": stream}, results)
        server.wait_until(lambda: bool(server.engine.submitted))
        server.wait_until(lambda: server.engine.sent.total() > 5)  # a stream has begun by now
        server.stop()
        if skips_wait:
            server.skip_wait()
        assert server.join() is None
        running.join()
    ((status, text),) = results
    assert status == (200 if stream else 503)
    assert "The server is stopping" in text
    assert "[DONE]" not in text


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_engine_ends_every_request_and_the_process(tiny_model, stream):
    with live_server(tiny_model) as server:
        busy(server)
        results, deaths = [], []
        threads = [post_later(server, ASK | {"stream": stream}, results, deaths) for _ in range(3)]
        server.wait_until(lambda: len(server.engine.submitted) == 3)
        server.wait_until(lambda: all(server.engine.sent[s.request_id] > 5 for s in server.engine.submitted))
        server.call(server.engine.die)
        assert server.join() == Fatal("EngineDied", "the engine's process was killed by signal 9")
        for thread in threads:
            thread.join()
    assert deaths == [None if stream else "engine"] * 3  # by which the gateway tries another pod
    for status, text in results:
        assert status == (200 if stream else 500)
        *_, last = [line for line in text.splitlines() if line]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_failed"
    assert len(results) == 3


@pytest.mark.parametrize("tokens", [0, 3])
def test_an_engine_that_answers_no_more_ends_the_process(tiny_model, monkeypatch, tokens):
    monkeypatch.setattr(http_server, "wait_for_silence", partial(wait_for_silence, timeout_s=0.5))
    with live_server(tiny_model) as server:
        time.sleep(1)  # silent, but idle
        assert httpx.get(server.url + "/readyz").status_code == 200
        server.engine.script = lambda _: tokens_of("abc"[:tokens])  # and no end
        results = []
        waiting = post_later(server, ASK, results)
        failure = server.join()
        waiting.join()
    assert (failure.reason, failure.exit_code) == ("EngineFailed", 1)
    assert "answered nothing for 0.5 s" in failure.message
    assert [status for status, _ in results] == [503]


def test_a_model_that_does_not_load_ends_the_process_with_its_reason(tiny_model):
    fatal = Fatal("DoesNotFit", "needs 17.1 GiB, this machine has 14.8 GiB free", 3)
    with live_server(tiny_model, is_ready=False) as server:
        server.call(lambda: server.engine.die(fatal))
        assert server.join() == fatal


def test_a_broken_tokenizer_ends_the_process(tmp_path):
    model = write_model(tmp_path / "tiny")
    (model / "tokenizer.json").write_text("{")
    with live_server(model, is_ready=False) as server:
        failure = server.join()
    assert failure.reason == "TokenizerUnreadable"
    assert "tokenizer.json" in failure.message


def test_a_model_without_a_template_completes_but_does_not_chat(tmp_path):
    model = write_model(tmp_path / "base", template=None)
    with live_server(model) as server, httpx.Client(base_url=server.url) as client:
        refused = client.post(CHAT, json=ASK)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "no_chat_template")
        assert "/v1/completions" in refused.json()["error"]["message"]
        assert client.post("/v1/completions", json={"model": "tiny", "prompt": "hi"}).status_code == 200


@pytest.mark.parametrize(
    ("times_s", "is_spent"),
    [
        ([0, 10, 20], False),
        ([0, 10, 20, 30], True),
        ([0, 0.1, 0.2, 0.3, 0.4], False),  # one broken step fails every sequence in it
        ([0, 30, 61, 92], False),  # old errors are forgiven
        ([0, 30, 59, 59.9, 61], False),
    ],
)
def test_the_error_budget_forgives_bursts_and_old_errors(times_s, is_spent):
    budget = ErrorBudget(limit=3, window_s=60)
    for now_s in times_s:
        budget.spend(now_s)
    assert budget.is_spent.is_set() == is_spent


def test_a_spent_error_budget_ends_the_process(tiny_model):
    with live_server(tiny_model) as server:
        server.call(server.server.service.budget.is_spent.set)
        assert server.join().reason == "ErrorBudgetSpent"
