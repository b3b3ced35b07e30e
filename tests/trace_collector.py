"""A collector of traces: receives OTLP over HTTP in protobuf, and keeps the spans."""

import gzip
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


def value_of(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    return getattr(value, kind)


def attributes_of(pairs):
    return {pair.key: value_of(pair.value) for pair in pairs}


class Collector:
    """Spans by trace, each as a dictionary."""

    def __init__(self):
        self.spans, self.raw, self.status = [], b"", 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.add(self.path, body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(collector.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def add(self, path, body):
        assert path == "/v1/traces"
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = attributes_of(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [self._read(service, span) for span in scope.spans]

    def _read(self, service, span):
        return {
            "name": f"{service.removeprefix('wisp-')}: {span.name}",
            "trace": span.trace_id.hex(),
            "id": span.span_id.hex(),
            "parent": span.parent_span_id.hex(),
            "seconds": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
            "begin_ns": span.start_time_unix_nano,
            "is_error": span.status.code == 2,
            "message": span.status.message,
            "events": [event.name for event in span.events],
            "attributes": attributes_of(span.attributes),
            "links": [link.trace_id.hex() for link in span.links],
        }

    def tree(self, trace):
        """Names of a trace's spans, those within a span below it, in the order in which they began."""

        def below(parent):
            children = [span for span in self.spans if (span["trace"], span["parent"]) == (trace, parent)]
            return {span["name"]: below(span["id"]) for span in sorted(children, key=lambda s: s["begin_ns"])}

        ids = {span["id"] for span in self.spans}
        roots = {span["parent"] for span in self.spans if span["trace"] == trace} - ids
        return below(roots.pop()) if len(roots) == 1 else {}

    def span(self, trace, name):
        [span] = [span for span in self.spans if (span["trace"], span["name"]) == (trace, name)]
        return span


@contextmanager
def collecting():
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        collector.server.server_close()
