"""The open-loop client against a server of the test's own: what it sends, counts, and refuses to count."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner
from openai_server import HEAD, OpenAIServer, chunk, event, paced, running, tokens

from wisp_runtime.bench.load.client import run_stage
from wisp_runtime.bench.load.requests import Address, RequestOptions, encode_requests
from wisp_runtime.bench.load.stream import Streamed, StreamProtocol
from wisp_runtime.bench.load.summary import Percentiles, summarize
from wisp_runtime.bench.load.trace import Arrival, Stage
from wisp_runtime.cli.bench import command as bench


@pytest.fixture(scope="module")
def serving():
    with running(OpenAIServer()) as server:
        yield server


@pytest.fixture
def server(serving):
    serving.behaviour, serving.models = paced(0.0, 0.0), ("m",)
    serving.bodies.clear()
    serving.heads.clear()
    return serving


def load(*arguments, code=0):
    result = CliRunner().invoke(bench, ["load", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def stage_of(server, arrivals, timeout_s=20.0, **options):
    address = Address.parse(server.url)
    requests = encode_requests(address, RequestOptions("m", **options), arrivals, seed=0)
    return run_stage(address, requests, Stage("s", tuple(arrivals)), timeout_s, lambda *_: None)


def scripted(*parts):
    async def respond(_body):
        for part in parts:
            yield part

    return respond


def test_requests_are_sent_at_their_time_whatever_became_of_the_ones_before(server):
    """The open loop: the first answer ends only when the last request has arrived."""
    last_arrived = asyncio.Event()

    async def respond(body):
        yield HEAD
        if len(server.bodies) == 5:
            last_arrived.set()
        await last_arrived.wait()
        for part in tokens(body["max_tokens"]):
            yield chunk(part)
        yield b"0\r\n\r\n"

    server.behaviour = respond
    streams, cost = stage_of(server, [Arrival(0.002 * number, 4, 3) for number in range(5)])
    assert [stream.error for stream in streams] == [None] * 5
    assert all(stream.began_s >= stream.planned_s for stream in streams)
    assert [stream.tokens for stream in streams] == [3] * 5
    assert cost.cpu_share > 0


def test_the_lengths_and_the_model_are_asked_for(server):
    stage_of(server, [Arrival(0, 7, 11)], vocab=50, api_key="key")
    (body,) = server.bodies
    assert (body["model"], body["max_tokens"], body["ignore_eos"], body["stream"]) == ("m", 11, True, True)
    assert len(body["prompt"]) == 7
    assert max(body["prompt"]) < 50
    assert "Authorization: Bearer key" in server.heads[-1]


def test_the_tokens_of_a_chat_s_first_event_without_text_are_no_first_token(server):
    role = chunk(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
    said = chunk(event({"choices": [{"delta": {"content": "hi"}}]}) + b"data: [DONE]\n\n")
    server.behaviour = scripted(HEAD, role, said, b"0\r\n\r\n")
    (stream,), _ = stage_of(server, [Arrival(0, 5, 2)], endpoint="chat", prompts="words")
    assert (stream.events, stream.tokens, stream.error) == (1, 1, None)
    (message,) = server.bodies[0]["messages"]
    assert len(message["content"].split()) == 5
    assert "/v1/chat/completions" in server.heads[-1]


def test_an_event_that_arrives_in_two_parts_counts_once():
    loop = asyncio.new_event_loop()
    whole = b"".join([HEAD, *map(chunk, tokens(2)), b"0\r\n\r\n"])
    for cut in range(1, len(whole)):
        stream, done = Streamed(0.0, 0.0), loop.create_future()
        protocol = StreamProtocol(b"", stream, done)
        protocol.data_received(whole[:cut])
        protocol.data_received(whole[cut:])
        assert done.done()
        assert (stream.events, stream.tokens, stream.error) == (2, 2, None)
    loop.close()


def test_several_tokens_of_an_event_count_by_usage():
    stream = Streamed(0.0, 1.0, first_s=1.5, last_s=2.5, events=3, tokens=11)
    assert stream.first_token_ms == 500
    assert stream.time_per_token_ms == 100


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nfull"], "HTTP 429: full"),
        ([HEAD, chunk(b"".join([*tokens(2)][:2])), b"0\r\n\r\n"], "after 2 events, without [DONE]"),
        ([HEAD, chunk(next(tokens(1)))], "was cut after 1 events"),
        ([HEAD, chunk(event({"error": {"message": "engine died"}}))], "engine died"),
        ([HEAD, chunk(b"data: {nonsense\n\n")], "no JSON object"),
        ([b"not HTTP at all\r\n\r\n"], "invalid HTTP"),
        ([], "was cut after 0 events"),
    ],
)
def test_an_answer_that_is_not_complete_is_a_failure_and_in_no_percentile(server, parts, error):
    server.behaviour = scripted(*parts)
    streams, cost = stage_of(server, [Arrival(0, 3, 2)])
    assert error in streams[0].error
    row = summarize("m", "1", streams, cost)
    assert (row.failed, row.first_token_ms, row.output_tokens) == (1, None, 0)
    assert error in row.to_dict()["errors"][0]


def test_an_answer_without_end_fails_after_the_time_limit(server):
    async def respond(_body):
        yield HEAD
        await asyncio.Event().wait()

    server.behaviour = respond
    (stream,), _ = stage_of(server, [Arrival(0, 3, 2)], timeout_s=0.05)
    assert stream.error == "no end within 0.05 s"


def test_a_server_that_is_not_there_is_a_failure():
    (stream,), _ = stage_of(OpenAIServer(port=1), [Arrival(0, 3, 2)])
    assert "connection failed" in stream.error


def test_percentiles_are_of_all_values():
    spread = Percentiles.of([float(number) for number in range(1, 101)])
    assert (spread.mean, spread.p50, spread.p90, spread.p99) == (50.5, 50, 90, 99)
    assert Percentiles.of([]) is None


def test_the_command_keeps_a_row_a_stage(server, tmp_path):
    out = tmp_path / "load.json"
    stages = ["--rates", "200,400", "--seconds", 0.02, "--burst", 5, "--alone", "9,17", "--repeats", 2]
    text = load("--url", server.url, *stages, "--output-tokens", 3, "--json", out, "--commit", "abc")
    record = json.loads(out.read_text())
    names = ["alone, 9 tokens", "alone, 17 tokens", "200/s", "400/s", "5 at once"]
    assert [row["arrivals"] for row in record["rows"]] == names
    assert all(row["failed"] == 0 and row["server"] == "m" for row in record["rows"])
    assert {"mean", "p50", "p90", "p99"} == set(record["rows"][0]["time_per_token_ms"])
    assert record["commit"] == "abc"
    assert str(tmp_path) not in record["command"]
    assert text.count("late p99") == 5


def test_a_server_of_several_models_wants_a_name(server):
    server.models = ("a", "b")
    assert "2 models (a, b): name one with --model" in load("--url", server.url, "--burst", 1, code=2)


def test_a_server_that_refuses_to_list_its_models_is_quoted():
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(401, "No API key")

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        text = load("--url", f"http://127.0.0.1:{refusing.server_port}", "--rates", 5, code=1)
        refusing.shutdown()
    assert "answered HTTP 401" in text
    assert "--api-key" in text


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://h:port"])
def test_a_url_of_another_form_is_refused(url):
    assert "it must be http://HOST:PORT" in load("--url", url, code=2)


def test_no_server_is_said_in_a_line():
    assert "Is a server there?" in load("--url", "http://127.0.0.1:1", code=1)


@pytest.mark.parametrize("rates", ["0", "-1", "x", "5,", ""])
def test_rates_are_numbers_above_zero(rates):
    assert "is not a list of numbers" in load("--url", "http://127.0.0.1:1", "--rates", rates, code=2)
