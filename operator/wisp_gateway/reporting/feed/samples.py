"""Samples of load, one a second, and their averages over ten seconds of the last fifteen minutes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from wisp_gateway.reporting.feed.documents import pods_sample
from wisp_gateway.reporting.feed.pod_reader import PodReader
from wisp_gateway.routing.model_state import ModelState

KEPT_S = 900
AVERAGED = 10
MAX_MODELS = 100
_MEAN = ("in", "out", "running", "waiting")

Sample = dict[str, Any]


class Samples:
    """Token rates and load of the models that work."""

    def __init__(self, pods: PodReader) -> None:
        self._pods = pods
        self._tokens: dict[ModelState, int] = {}
        self._prompt_tokens: Counter[str] = Counter()
        self._last_s: float | None = None
        self._recent: list[Sample] = []
        self._kept: deque[Sample] = deque(maxlen=KEPT_S // AVERAGED)

    def rows(self) -> list[Sample]:
        """Return the samples of the last fifteen minutes, oldest first; the last is of what came since."""
        newest = average(self._recent) if any(sample["models"] for sample in self._recent) else None
        return [*self._kept, newest] if newest else list(self._kept)

    def add_prompt(self, key: str, tokens: int) -> None:
        """Count the prompt tokens of an answer."""
        self._prompt_tokens[key] += tokens

    def take(self, states: Iterable[ModelState], now_s: float, now: float) -> Sample | None:
        """Return the sample since the last call; None if no model works.

        Args:
            now_s: monotonic seconds.
            now: Unix time.
        """
        passed_s = max(1e-3, now_s - self._last_s) if self._last_s is not None else 1.0
        self._last_s = now_s
        models: dict[str, dict[str, Any]] = {}
        tokens: dict[ModelState, int] = {}
        for state in states:
            tokens[state] = state.tokens
            made = state.tokens - self._tokens.get(state, 0)
            read = self._prompt_tokens[state.model.key] if self._prompt_tokens else 0
            if (state.running or len(state.queue) or made or read) and len(models) < MAX_MODELS:
                models[state.model.key] = {
                    "in": round(read / passed_s, 1),
                    "out": round(made / passed_s, 1),
                    "running": state.running,
                    "waiting": len(state.queue),
                    **pods_sample(state, self._pods, now_s),
                }
        self._tokens = tokens
        self._prompt_tokens.clear()
        sample = {"t": round(now, 2), "models": models}
        self._keep(sample)
        while self._kept and self._kept[0]["t"] < now - KEPT_S:  # the seconds without load are not kept
            self._kept.popleft()
        return sample if models else None

    def _keep(self, sample: Sample) -> None:
        self._recent.append(sample)
        if len(self._recent) < AVERAGED:
            return
        averaged = average(self._recent)
        self._recent.clear()
        if averaged["models"] or (self._kept and self._kept[-1]["models"]):  # a line ends at zero
            self._kept.append(averaged)


def average(samples: list[Sample]) -> Sample:
    """Return the mean of load and rates, and the last known values of those that pods report."""
    keys = dict.fromkeys(key for sample in samples for key in sample["models"])
    models = {}
    for key in keys:
        known = [sample["models"][key] for sample in samples if key in sample["models"]]
        models[key] = {name: round(sum(row[name] for row in known) / len(samples), 2) for name in _MEAN}
        for name in ("kv", "prefixHits", "gpuUsed"):
            models[key][name] = next((row[name] for row in reversed(known) if row[name] is not None), None)
    return {"t": samples[-1]["t"], "models": models}
