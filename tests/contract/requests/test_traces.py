"""One trace of a request over both programs, as a collector gets it; and what happens without one."""

import logging
import socket
import sys

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.trace.export import SpanExportResult
from trace_collector import collecting
from two_programs import pair, until

from wisp_http.span_exporter import SpanExporter
from wisp_http.trace_context import trace_of
from wisp_http.tracing import open_tracer

CHAT = "/v1/chat/completions"
SECRET = "marzipan"
PARENT = "00f067aa0ba902b7"
AT_RUNTIME = {"runtime: queue": {}, "runtime: prefill": {}, "runtime: decode": {}}
TREE = {
    f"gateway: POST {CHAT}": {
        "gateway: receive": {},
        "gateway: queue": {},
        "gateway: upstream": {f"runtime: POST {CHAT}": AT_RUNTIME},
    }
}


def body(text=SECRET, **fields):
    return {"model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": text}], **fields}


def traceparent(number, flags="01"):
    trace = f"{number:032x}"
    return trace, {"traceparent": f"00-{trace}-{PARENT}-{flags}"}


def environment(url):
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_SERVICE_NAME": ""}


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    with collecting() as collector, pair(folder, **environment(collector.url)) as both:
        yield both, collector


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_is_one_tree_over_both_programs(traced, is_stream):
    programs, collector = traced
    trace, headers = traceparent(100 + is_stream)
    answer = programs.client.post(CHAT, json=body(stream=is_stream), headers=headers)
    until(lambda: collector.tree(trace) == TREE)
    request = answer.headers["x-request-id"]
    for name, model in ((f"gateway: POST {CHAT}", "team/tiny"), (f"runtime: POST {CHAT}", "tiny")):
        attributes = collector.span(trace, name)["attributes"]
        assert attributes.pop("gen_ai.usage.input_tokens") > len(SECRET)
        assert attributes == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "wisp",
            "gen_ai.request.model": model,
            "gen_ai.usage.output_tokens": 13,
            "gen_ai.usage.cache_read.input_tokens": 0,
            "gen_ai.response.finish_reasons": ["stop"],
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "url.path": CHAT,
            "wisp.request.id": request,
        }
    assert collector.span(trace, f"gateway: POST {CHAT}")["parent"] == PARENT
    assert collector.span(trace, "gateway: queue")["attributes"] == {"wisp.waited_for_wake": False}
    assert collector.span(trace, "runtime: decode")["seconds"] > 0
    assert SECRET.encode() not in collector.raw
    for program in ("gateway", "runtime"):
        assert until(lambda name=program: programs.records(name, request=request, trace=trace))


def test_a_failure_of_the_engine_is_an_error_of_each_span_that_it_ends(traced):
    programs, collector = traced
    trace, headers = traceparent(200)
    programs.client.post(CHAT, json=body("engine fails"), headers=headers)
    failed = {f"gateway: POST {CHAT}", f"runtime: POST {CHAT}"}
    until(lambda: failed <= {span["name"] for span in collector.spans if span["trace"] == trace})
    for name in failed:
        span = collector.span(trace, name)
        assert (span["is_error"], span["attributes"]["error.type"]) == (True, "500")


def test_a_trace_that_is_not_sampled_sends_nothing_and_a_request_without_one_begins_its_own(traced):
    programs, collector = traced
    unsampled, headers = traceparent(300, flags="00")
    programs.client.post(CHAT, json=body(), headers=headers)
    request = programs.client.post(CHAT, json=body()).headers["x-request-id"]
    [record] = until(lambda: programs.records("gateway", request=request))
    until(lambda: collector.tree(record["trace"]) == TREE)
    assert collector.tree(unsampled) == {}
    assert [line["message"] for line in programs.records("runtime", trace=unsampled)] == ["answered"]


def test_probes_and_lists_of_unknown_paths_name_no_span(traced):
    programs, collector = traced
    for path in ("/livez", "/readyz", "/metrics"):
        programs.client.get(path)
    trace, headers = traceparent(400)
    programs.client.get(f"/{SECRET}", headers=headers)
    until(lambda: collector.tree(trace) == {"gateway: GET": {}})
    assert not [span for span in collector.spans if "livez" in str(span) or "readyz" in str(span)]


def test_a_collector_that_is_away_harms_no_request(tmp_path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # not listening: connections are refused
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pair(tmp_path, **environment(url)) as programs:
            for _ in range(5):
                assert programs.client.post(CHAT, json=body()).status_code == 200


def test_a_collector_that_refuses_spans_is_logged_once_and_again_when_it_takes_them(caplog):
    caplog.set_level(logging.INFO)
    with collecting() as collector:
        exporter = SpanExporter(f"{collector.url}/v1/traces")
        for status in (404, 403, 200, 200):
            collector.status = status
            exporter.export([])
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "404" in caplog.messages[0]
    assert f"{collector.url}/v1/traces takes spans again" in caplog.messages[1]


NESTED = """a pool of (Caused by NewConnectionError("x: [Errno 111] Connection refused")) while exporting"""


def fail_as_now(*_):
    logging.getLogger(trace_exporter.__name__).warning("Transient error %s", NESTED)
    return SpanExportResult.FAILURE


def fail_as_before(*_):  # OpenTelemetry 1.30
    raise ConnectionError(NESTED)


@pytest.mark.parametrize("fail", [fail_as_now, fail_as_before])
def test_a_collector_that_is_away_is_logged_with_the_reason_alone(fail, monkeypatch, caplog):
    monkeypatch.setattr(trace_exporter.OTLPSpanExporter, "export", fail)
    exporter = SpanExporter("http://127.0.0.1:9/v1/traces")
    for _ in range(2):
        exporter.export([])
    (message,) = caplog.messages
    assert message.startswith("spans are lost: http://127.0.0.1:9/v1/traces takes none (")
    assert "takes none ([Errno 111] Connection refused). Is a collector there" in message


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "grpc://collector:4317", "http://", "collector"])
def test_an_endpoint_that_is_no_url_is_a_warning(endpoint, caplog):
    assert open_tracer(endpoint, "wisp") is None
    assert f"{endpoint!r} is no URL of a collector" in caplog.text


def test_without_an_endpoint_the_header_is_passed_on(programs):
    trace, headers = traceparent(500)
    request = programs.client.post(CHAT, json=body(), headers=headers).headers["x-request-id"]
    for program in ("gateway", "runtime"):
        assert until(lambda name=program: programs.records(name, request=request, trace=trace))


def test_without_the_extra_an_endpoint_is_a_warning(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "wisp_http.spans", None)
    with caplog.at_level(logging.WARNING):
        assert open_tracer("http://127.0.0.1:4318", "wisp") is None
    assert "wisp-serving[otel]" in caplog.text
    assert open_tracer(None, "wisp") is None


@pytest.mark.parametrize(
    "given", ["", "00-1-2-01", f"00-{'g' * 32}-{PARENT}-01", f"00-{'a' * 32}-{PARENT}-01\n"]
)
def test_a_header_that_is_no_traceparent_names_no_trace(given):
    assert trace_of([(b"traceparent", given.encode())]) is None


def test_the_runtime_alone_joins_a_trace(traced):
    programs, collector = traced
    trace, headers = traceparent(600)
    httpx.post(f"http://{programs.runtime}{CHAT}", json=body(), headers=headers)
    until(lambda: collector.tree(trace) == {f"runtime: POST {CHAT}": AT_RUNTIME})
