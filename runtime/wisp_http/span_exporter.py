"""Exporter of spans that logs once that the collector takes none, and once that it takes them again.

OpenTelemetry's own logs every try of every batch, in each program, for as long as the collector is away.
Imported with :mod:`.spans` alone, where OpenTelemetry is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

MAX_PROBLEM_CHARS = 300
_ERRNO = re.compile(r"\[Errno [^\"')]+")
log = logging.getLogger(__name__)


class SpanExporter(trace_exporter.OTLPSpanExporter):
    """Exports batches to one URL, from one thread."""

    def __init__(self, url: str) -> None:
        super().__init__(endpoint=url)
        self._url = url
        self._problem = ""
        self._is_away = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch; log the first that fails, and the first that arrives after it."""
        self._problem = ""
        own = logging.getLogger(trace_exporter.__name__)
        own.addFilter(self._keep_problem)
        try:
            result = super().export(spans)
        except OSError as error:  # of versions of OpenTelemetry that do not catch it
            result, self._problem = SpanExportResult.FAILURE, str(error)
        finally:
            own.removeFilter(self._keep_problem)
        is_away = result is not SpanExportResult.SUCCESS
        if is_away and not self._is_away:
            log.warning(
                "spans are lost: %s takes none (%s). Is a collector there for OTLP over HTTP, as a rule at "
                "port 4318 (4317 is gRPC)? Requests are served all the same",
                *(self._url, _cause(self._problem)),
            )
        elif self._is_away and not is_away:
            log.info("%s takes spans again", self._url)
        self._is_away = is_away
        return result

    def _keep_problem(self, record: logging.LogRecord) -> bool:
        """Keep the first message of a batch instead of logging it."""
        self._problem = self._problem or record.getMessage()
        return False


def _cause(problem: str) -> str:
    """Return the error of the network within nested ones, or all of a short message."""
    match = _ERRNO.search(problem)
    return match[0] if match else problem[:MAX_PROBLEM_CHARS]
