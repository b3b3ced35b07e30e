"""Counters, gauges and histograms in Prometheus' text format, and the gateway's own metrics.

Label values are known models, names of keys (at most :data:`MAX_KEYS`), codes of errors and status codes,
never text from a request.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from itertools import accumulate

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
)
MAX_KEYS = 200
UNUSED_S = 3600.0  # after which a key's name gives its place to another's
OTHER_KEYS = "(others)"


class Family:
    """A counter or gauge: one number per combination of label values."""

    kind = "counter"

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name = name
        self._text = text
        self._labels = labels
        self._values: dict[tuple[str, ...], float] = {}

    @property
    def is_by_model(self) -> bool:
        """True if the first label is a model."""
        return self._labels[:1] == ("model",)

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

    def drop_key(self, name: str) -> None:
        """Drop the series of a key."""
        if "key" in self._labels:
            position = self._labels.index("key")
            self._values = {values: n for values, n in self._values.items() if values[position] != name}

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

    def __init__(self, name: str, text: str, *labels: str, bounds_s: tuple[float, ...] = _BUCKETS_S) -> None:
        super().__init__(name, text, *labels)
        self._bounds_s = (*bounds_s, math.inf)
        self._series: dict[tuple[str, ...], list[int]] = {}

    def begin(self, *values: str) -> list[int]:
        """Return these label values' counts; new ones are 0, so that rates see the first observation."""
        return self._series.setdefault(values, [0] * len(self._bounds_s))

    def observe(self, seconds: float, *values: str) -> None:
        """Count one observation."""
        series = self._series.get(values) or self.begin(*values)
        series[bisect_left(self._bounds_s, seconds)] += 1
        self.add(seconds, *values)

    def keep_only(self, first_values: Container[str]) -> None:
        """Drop the series whose first label has none of these values."""
        for values in [values for values in self._series if values[0] not in first_values]:
            del self._series[values]
        super().keep_only(first_values)

    def lines(self) -> Iterator[str]:
        """Yield buckets, sum and count of every series."""
        yield f"# HELP {self.name} {self._text}"
        yield f"# TYPE {self.name} {self.kind}"
        for values, series in self._series.items():
            for bound, count in zip(map(_number, self._bounds_s), accumulate(series), strict=True):
                labels = _labels((*self._labels, "le"), (*values, bound))
                yield f"{self.name}_bucket{labels} {count}"
            labels = _labels(self._labels, values)
            yield f"{self.name}_sum{labels} {self.value(*values):.6f}"
            yield f"{self.name}_count{labels} {sum(series)}"


class Metrics:
    """All metrics of a gateway, split by model (``namespace/name``; empty: no known model).

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._keys: OrderedDict[str, float] = OrderedDict()  # with their last request, the oldest first
        self._add_models()
        self._add_answers()
        self._add_states()

    def _add_models(self) -> None:
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

    def _add_answers(self) -> None:
        self.first_token = Histogram(
            "wisp_gateway_time_to_first_token_seconds", "Time from arrival to the first token.", "model"
        )
        self.per_token = Histogram(
            "wisp_gateway_time_per_output_token_seconds",
            "Mean time of each further token of an answer, at its pod.",
            "model",
            bounds_s=_TOKEN_BUCKETS_S,
        )
        self.request = Histogram(
            "wisp_gateway_request_seconds",
            "Time from arrival to the end of an answer that went well.",
            "model",
        )
        self.key_requests = Family(
            "wisp_gateway_key_requests_total", "Requests answered, by key.", "model", "key", "code"
        )
        self.key_tokens = Family(
            "wisp_gateway_key_tokens_total",
            "Tokens by key, as pods report them: prompt (cached among them), cached, completion.",
            *("model", "key", "kind"),
        )
        self.refusals = Family(
            "wisp_gateway_refusals_total",
            "Errors that the gateway answered, by their code, type and key.",
            *("model", "key", "reason", "type"),
        )

    def _add_states(self) -> None:
        self.pods = Gauge(
            "wisp_gateway_pods_ready", "Pods that are ready, as the gateway sees them.", "model"
        )
        self.state = Gauge(
            "wisp_gateway_model_state", "1 for the state that a model is in.", "model", "state"
        )
        self.has_snapshot = Gauge(
            "wisp_gateway_has_snapshot", "1 once models, and the keys they need, have been read."
        )
        self.wakes_ended = Family("wisp_gateway_wakes_ended_total", "Wakes that ended.", "model", "outcome")
        self.wake_phases = Family(
            "wisp_gateway_wake_phase_seconds_total",
            "Time of each phase of the wakes that made a model ready.",
            *("model", "phase"),
        )
        self.operator_away = Gauge(
            "wisp_gateway_operator_away", "1 while no operator takes this gateway's reports of demand."
        )

    def key_label(self, name: str) -> str:
        """Return the label of a key's name: itself, or one for all while there are too many in use.

        A name that was not used for an hour is released, with its series, when another needs its place.
        """
        now_s = self._clock()
        if name not in self._keys and len(self._keys) >= MAX_KEYS:
            longest, used_s = next(iter(self._keys.items()))
            if now_s - used_s < UNUSED_S:
                return OTHER_KEYS
            del self._keys[longest]
            for family in self._families():
                family.drop_key(longest)
        self._keys[name] = now_s
        self._keys.move_to_end(name)
        return name

    def keep_only(self, models: set[str]) -> None:
        """Drop the series of all other models, which were deleted."""
        for family in self._families():
            if family.is_by_model:
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
    if math.isinf(number):
        return "+Inf"
    return str(int(number)) if float(number).is_integer() else repr(number)
