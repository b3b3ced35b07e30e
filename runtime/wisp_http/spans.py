"""Spans by OpenTelemetry, exported by OTLP over HTTP from a thread of their own.

Imports OpenTelemetry (extra ``otel``), as :mod:`.span_exporter` does and no other module. Sampling, limits
and the exporter's headers are set by its own variables (``OTEL_TRACES_SAMPLER``, ``OTEL_BSP_*``,
``OTEL_EXPORTER_OTLP_HEADERS``). Without a collector spans are lost, never a request: the queue is bounded
and drops what is over.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind, Status, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace import Tracer as OtelTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from wisp_http.span_exporter import SpanExporter
from wisp_http.trace_context import TRACE_HEADERS, Headers

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
PATH = "/v1/traces"
CLOSE_S = 2.0
MAX_ERROR_CHARS = 300
_W3C = TraceContextTextMapPropagator()
KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}


class Span:
    """A span; its times are those of the monotonic clock.

    Attributes:
        trace: id of its trace, in hex.
    """

    def __init__(self, tracer: OtelTracer, span: OtelSpan, wall_offset_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._wall_offset_ns = wall_offset_ns
        self.trace = f"{span.get_span_context().trace_id:032x}"

    @property
    def headers(self) -> Headers:
        """Headers of a request that is made within it."""
        carrier = dict[str, str]()
        _W3C.inject(carrier, set_span_in_context(self._span))
        return [(name.encode(), value.encode()) for name, value in carrier.items()]

    def child(
        self,
        name: str,
        began_s: float,
        ended_s: float | None = None,
        *,
        kind: str = "internal",
        attributes: Attributes | None = None,
    ) -> Span:
        """Return a span within it, which is over if ``ended_s`` is given."""
        span = self._tracer.start_span(
            name,
            set_span_in_context(self._span),
            KINDS[kind],
            attributes,
            start_time=self._wall_ns(began_s),
        )
        made = Span(self._tracer, span, self._wall_offset_ns)
        if ended_s is not None:
            made.end(ended_s)
        return made

    def set(self, attributes: Attributes, name: str = "") -> None:
        """Add attributes; rename it if ``name`` is given."""
        self._span.set_attributes(attributes)
        if name:
            self._span.update_name(name)

    def link(self, traceparent: str) -> None:
        """Link it to a span of another trace."""
        context = _W3C.extract({"traceparent": traceparent})
        self._span.add_link(get_current_span(context).get_span_context())

    def event(self, name: str, at_s: float, attributes: Attributes) -> None:
        """Add something that happened within it."""
        self._span.add_event(name, attributes, self._wall_ns(at_s))

    def end(self, ended_s: float | None = None, *, error: str = "", kind: str = "_OTHER") -> None:
        """End it, at ``ended_s`` or now; with ``error`` as failed.

        Args:
            kind: kind of the error, of few (``error.type``): a status, or a class.
        """
        if error:
            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR, error[:MAX_ERROR_CHARS]))
        self._span.end(self._wall_ns(time.monotonic() if ended_s is None else ended_s))

    def _wall_ns(self, monotonic_s: float) -> int:
        return int(monotonic_s * 1e9) + self._wall_offset_ns


class Tracer:
    """Makes the spans of one program, and exports them."""

    def __init__(self, endpoint: str, service: str) -> None:
        # Of the detectors the one of OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME, which outranks ours.
        own = {"service.name": service, "service.version": _version()}
        own["service.instance.id"] = f"{socket.gethostname()}-{os.getpid()}"
        resource = Resource(own).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        url = endpoint.rstrip("/")
        exporter = SpanExporter(url if url.endswith(PATH) else url + PATH)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("wisp")

    def begin(
        self, name: str, headers: Headers, began_s: float, attributes: Attributes, *, kind: str = "server"
    ) -> Span:
        """Begin the first span of this program for a request, within the trace that its headers name."""
        carrier = {key.decode(): value.decode("latin-1") for key, value in headers if key in TRACE_HEADERS}
        offset_ns = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(
            name, _W3C.extract(carrier), KINDS[kind], attributes, start_time=int(began_s * 1e9) + offset_ns
        )
        return Span(self._tracer, span, offset_ns)

    def close(self) -> None:
        """Export what is left, for at most ``CLOSE_S`` seconds."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _version() -> str:
    try:
        return version("wisp-serving")
    except PackageNotFoundError:
        return "unknown"
