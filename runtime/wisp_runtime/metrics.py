"""Counters, gauges and histograms, written as Prometheus text (version 0.0.4).

A leaf module; the metrics themselves are registered by ``server/metrics.py``. Not thread-safe: the server
uses it from its event loop only.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(Protocol):
    """Something with a name, a kind and samples."""

    name: str
    help: str
    kind: str

    def samples(self) -> Iterable[tuple[str, Mapping[str, str], float]]:
        """Yield (suffix of the name, labels, value)."""
        ...


class Counter:
    """A number that only grows, one for each set of labels."""

    kind = "counter"

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name, self.help, self._labels = name, help, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float = 1.0, **labels: str) -> None:
        """Grow by ``amount``, at least 0."""
        key = tuple(labels[name] for name in self._labels)
        self._values[key] = self._values.get(key, 0.0) + amount

    def samples(self) -> Iterable[tuple[str, Mapping[str, str], float]]:
        """Yield each labelled value."""
        for key, value in self._values.items():
            yield "", dict(zip(self._labels, key, strict=True)), value


class Reading:
    """A number read at collection time: a gauge, or a counter kept elsewhere.

    Args:
        read: function that returns the number, or labelled numbers.
    """

    def __init__(
        self,
        name: str,
        help: str,
        read: Callable[[], float | Iterable[tuple[Mapping[str, str], float]]],
        kind: str = "gauge",
    ) -> None:
        self.name, self.help, self.kind, self._read = name, help, kind, read

    def samples(self) -> Iterable[tuple[str, Mapping[str, str], float]]:
        """Read, and yield the values."""
        value = self._read()
        if isinstance(value, (int, float)):
            yield "", {}, float(value)
        else:
            yield from (("", labels, number) for labels, number in value)


class Histogram:
    """Observations by bucket; upper bounds are inclusive, ``+Inf`` is added."""

    kind = "histogram"

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name, self.help = name, help
        self._bounds = (*sorted(bounds), math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Iterable[tuple[str, Mapping[str, str], float]]:
        """Yield cumulative buckets, the sum and the count."""
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=True):
            total += count
            yield "_bucket", {"le": _number(bound)}, total
        yield "_sum", {}, self._sum
        yield "_count", {}, total


AnyMetric = TypeVar("AnyMetric", bound=Metric)


class Registry:
    """Metrics in the order of their registration.

    Args:
        labels: labels of every sample, before its own.
        other_labels: those of samples under another server's name, which has a colon.
    """

    def __init__(self, labels: Mapping[str, str], other_labels: Mapping[str, str] | None = None) -> None:
        self._labels = dict(labels)
        self._other_labels = self._labels | dict(other_labels or {})
        self._metrics: dict[str, Metric] = {}

    def add(self, metric: AnyMetric, *also_as: str) -> AnyMetric:
        """Register a metric, under the names ``also_as`` too.

        Raises:
            ValueError: the name is taken.
        """
        for name in (metric.name, *also_as):
            if name in self._metrics:
                raise ValueError(f"metric {name} is registered twice")
            self._metrics[name] = metric
        return metric

    def render(self) -> str:
        """Return all samples as Prometheus text."""
        lines = []
        for name, metric in self._metrics.items():
            lines += [f"# HELP {name} {_escaped_help(metric.help)}", f"# TYPE {name} {metric.kind}"]
            common = self._other_labels if ":" in name else self._labels
            for suffix, labels, value in metric.samples():
                lines.append(f"{name}{suffix}{_label_text({**common, **labels})} {_number(value)}")
        return "\n".join(lines) + "\n"


def _label_text(labels: Mapping[str, str]) -> str:
    pairs = [f'{name}="{_escaped(value)}"' for name, value in labels.items()]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escaped(text: str) -> str:
    return _escaped_help(text).replace('"', '\\"')


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
