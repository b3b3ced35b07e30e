"""Counters, gauges and histograms in Prometheus' text format, and the gateway's own metrics.

Label values are known models and status codes, never text from a request.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Family:
    """A counter or gauge: one number per combination of label values."""

    kind = "counter"

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name = name
        self._text = text
        self._labels = labels
        self._values: dict[tuple[str, ...], float] = {}

    def add(self, amount: float, *values: str) -> None:
        """Add ``amount`` to the series with these label values."""
        self._values[values] = self._values.get(values, 0.0) + amount

    def set(self, amount: float, *values: str) -> None:
        """Set the series with these label values."""
        self._values[values] = amount

    def value(self, *values: str) -> float:
        """Return the series' value; 0 if there is none."""
        return self._values.get(values, 0.0)

    def clear(self) -> None:
        """Drop every series (a gauge that is written anew at each scrape)."""
        self._values.clear()

    def keep_only(self, first_values: Container[str]) -> None:
        """Drop the series whose first label has none of these values."""
        for values in [values for values in self._values if values[0] not in first_values]:
            del self._values[values]

    def lines(self) -> Iterator[str]:
        """Yield this family in Prometheus' text format."""
        yield f"# HELP {self.name} {self._text}"
        yield f"# TYPE {self.name} {self.kind}"
        for values, number in self._values.items():
            yield f"{self.name}{_labels(self._labels, values)} {_number(number)}"


class Gauge(Family):
    """A value that goes up and down."""

    kind = "gauge"


class Histogram(Family):
    """Observations in fixed buckets of seconds."""

    kind = "histogram"

    def __init__(self, name: str, text: str, *labels: str) -> None:
        super().__init__(name, text, *labels)
        self._series: dict[tuple[str, ...], list[float]] = {}

    def observe(self, seconds: float, *values: str) -> None:
        """Count one observation."""
        series = self._series.setdefault(values, [0.0] * (len(_BUCKETS_S) + 2))
        for index, bound in enumerate(_BUCKETS_S):
            if seconds <= bound:
                series[index] += 1
        series[-2] += 1
        series[-1] += seconds

    def keep_only(self, first_values: Container[str]) -> None:
        """Drop the series whose first label has none of these values."""
        for values in [values for values in self._series if values[0] not in first_values]:
            del self._series[values]

    def lines(self) -> Iterator[str]:
        """Yield buckets, sum and count of every series."""
        yield f"# HELP {self.name} {self._text}"
        yield f"# TYPE {self.name} {self.kind}"
        for values, series in self._series.items():
            for bound, count in zip([*map(_number, _BUCKETS_S), "+Inf"], series[:-1], strict=True):
                labels = _labels((*self._labels, "le"), (*values, bound))
                yield f"{self.name}_bucket{labels} {_number(count)}"
            labels = _labels(self._labels, values)
            yield f"{self.name}_sum{labels} {series[-1]:.6f}"
            yield f"{self.name}_count{labels} {_number(series[-2])}"


class Metrics:
    """All metrics of a gateway, split by model (``namespace/name``; empty: no known model)."""

    def __init__(self) -> None:
        self.requests = Family("wisp_gateway_requests_total", "Requests answered.", "model", "code")
        self.waiting = Gauge("wisp_gateway_requests_waiting", "Requests held in the gateway.", "model")
        self.running = Gauge("wisp_gateway_requests_running", "Requests at a pod.", "model")
        self.hold = Histogram("wisp_gateway_hold_seconds", "Time from arrival to a slot at a pod.", "model")
        self.first_byte = Histogram(
            "wisp_gateway_time_to_first_byte_seconds",
            "Time from arrival to the answer's first byte.",
            "model",
        )
        self.cold_start = Histogram(
            "wisp_gateway_cold_start_seconds", "Time from the first held request to a ready pod.", "model"
        )
        self.retries = Family("wisp_gateway_retries_total", "Requests sent again after a pod died.", "model")
        self.wakes = Family(
            "wisp_gateway_wakes_total", "Requests that found no ready pod and began a wake.", "model"
        )
        self.received = Family("wisp_gateway_received_bytes_total", "Bytes of request bodies.", "model")
        self.sent = Family("wisp_gateway_sent_bytes_total", "Bytes of answers from pods.", "model")
        self.tokens = Family("wisp_gateway_tokens_total", "Streamed events and counted tokens.", "model")
        self.routed = Family(
            "wisp_gateway_routed_total",
            "Requests of models with several pods, by their reason.",
            "model",
            "by",
        )
        self.prompts = Family("wisp_gateway_prompt_bytes_total", "Bytes of the prompts of these.", "model")
        self.matched = Family(
            "wisp_gateway_prompt_matched_bytes_total",
            "Bytes that the pod had cached, by the record.",
            "model",
        )

    def keep_only(self, models: set[str]) -> None:
        """Drop the series of all other models, which were deleted."""
        for family in self._families():
            family.keep_only(models | {""})

    def render(self) -> bytes:
        """Write all families in Prometheus' text format, version 0.0.4."""
        return "".join(f"{line}\n" for family in self._families() for line in family.lines()).encode()

    def _families(self) -> list[Family]:
        return [family for family in vars(self).values() if isinstance(family, Family)]


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(number)
