"""Feed of changes: compares the models, keeps the histories, and writes each event once for all subscribers.

Without a subscriber only the histories are kept: samples, wakes, finished requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from wisp_gateway.config import Config
from wisp_gateway.inbound.client import Client
from wisp_gateway.reporting.feed.documents import (
    is_waking,
    model_document,
    request_row,
    stable,
    without_sender,
)
from wisp_gateway.reporting.feed.pod_reader import Fetch, PodReader, phases_of
from wisp_gateway.reporting.feed.samples import Samples
from wisp_gateway.reporting.feed.subscribers import (
    Subscriber,
    Subscribers,
    VisibleModels,
    event,
    may_read,
    visible_part,
)
from wisp_gateway.reporting.feed.wakes import WakeLog
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.registry import ModelRegistry

POLL_S = 0.25
PERIOD_S = 1.0
MAX_REQUESTS = 200
_ANSWERS = ("/completions", "/messages", "/responses", "/embeddings", "/score", "/rerank")

Document = dict[str, Any]


class Feed:
    """Current documents of the models, histories, and the stream of events that open pages read.

    Args:
        fetch: reader of a pod's ``/state``, as :class:`PodReader` takes it.
        clock: monotonic seconds, as of the registry's states.
        wall: Unix seconds.
        on_wake: callback with the row of a wake that ended.
    """

    def __init__(
        self,
        config: Config,
        registry: ModelRegistry,
        fetch: Fetch,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        on_wake: Callable[[Document], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._registry = registry
        self._clock = clock
        self._wall = wall
        self._pods = PodReader(fetch, clock)
        self._wakes = WakeLog(self._pods, on_wake)
        self._samples = Samples(self._pods)
        self._requests: deque[Document] = deque(maxlen=MAX_REQUESTS)
        self._subscribers = Subscribers()
        self._has_subscribers = asyncio.Event()
        self._sent: dict[str, Document] = {}
        self._polled_s = float("-inf")
        self._is_stopping = False

    async def run(self) -> None:
        """Poll for changes while there are subscribers, until cancelled."""
        while True:
            await self._has_subscribers.wait()
            if self._wakes.is_any_running or self._clock() - self._polled_s >= PERIOD_S:
                self.poll()
            await asyncio.sleep(POLL_S)

    def open(self, visible: VisibleModels, account: str) -> Subscriber:
        """Add a subscriber.

        Raises:
            TooManySubscribers: there are as many as may be, of all or of ``account``.
        """
        subscriber = self._subscribers.open(visible, account)
        self._has_subscribers.set()
        return subscriber

    def show(self, subscriber: Subscriber, visible: VisibleModels) -> None:
        """Set the models that a subscriber may read about; if they are others, it gets the state again.

        The events of a model that it may read about since now have gone to others alone.
        """
        if visible != subscriber.visible:
            subscriber.visible = visible
            subscriber.put(event("state", self.state(visible)))

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a subscriber."""
        self._subscribers.remove(subscriber)
        if not len(self._subscribers):
            self._has_subscribers.clear()
            self._sent.clear()
            for state in self._registry.states():
                state.observed_phase = None

    def close(self) -> None:
        """End every subscriber: the gateway stops."""
        self._is_stopping = True
        self._subscribers.close()

    def stop_reading(self) -> None:
        """End the requests to pods that run."""
        self._pods.close()

    def state(self, visible: VisibleModels) -> Document:
        """Return the document of ``/state``."""
        states = [state for state in self._registry.states() if may_read(visible, state.model.key)]
        return {
            "gateway": self._config.name,
            "status": "stopping" if self._is_stopping else "ready",
            "models": [self._document(state) for state in states],
        }

    def context_of(self, state: ModelState) -> int | None:
        """Return a model's context in tokens; None: its pods were not read yet, which begins now."""
        known = self._pods.last_of(state)
        if known is None:
            self._pods.read_due([state] if state.ready else [])
        return known.context if known is not None else None

    def history(self, visible: VisibleModels) -> Document:
        """Return the document of ``/state/history``."""
        return {
            "samples": [visible_part(sample, visible) for sample in self._samples.rows()],
            "wakes": [row for row in self._wakes.rows() if may_read(visible, row["key"])],
            "requests": [
                row if visible is None else without_sender(row)
                for row in self._requests
                if may_read(visible, row["key"])
            ],
        }

    def every_second(self) -> None:
        """Take a sample, and record the wakes; to be called each second."""
        states, now_s, now = self._registry.states(), self._clock(), self._wall()
        sample = self._samples.take(states, now_s, now)
        if sample is not None:
            self._subscribers.add_sample(sample)
        self._add_wakes(self._wakes.observe(states, now_s, now))
        self._subscribers.flush()

    def record(self, client: Client) -> None:
        """Record a finished request, if it asked for an answer."""
        if client.method != "POST" or not client.path.endswith(_ANSWERS):
            return
        row = request_row(client, self._clock() - client.entered_s)
        self._requests.append(row)
        self._subscribers.add("request", client.model_key, row, without_sender(row))
        if client.usage is not None:
            self._samples.add_prompt(client.model_key, client.usage.prompt_tokens)
        state = self._registry.find(client.model_key)
        wake = self._wakes.first_answer(state, client) if state is not None else None
        self._add_wakes([wake] if wake is not None else [])

    def poll(self) -> None:
        """Read pods that are due, and send the documents that changed."""
        states, self._polled_s = self._registry.states(), self._clock()
        self._pods.read_due(states)
        self._add_wakes(self._wakes.observe(states, self._polled_s, self._wall()))
        for state in states:
            state.observed_phase = self._phase(state)
        documents = {state.model.key: self._document(state) for state in states}
        for key, document in documents.items():
            kept = stable(document)
            if self._sent.get(key) != kept:
                self._sent[key] = kept
                self._subscribers.add("model", key, document)
        for key in self._sent.keys() - documents.keys():
            del self._sent[key]
            self._subscribers.add("gone", key, {"key": key})
        self._subscribers.flush()

    def _document(self, state: ModelState) -> Document:
        document = model_document(state, self._config.base_url, self._pods, self._clock())
        phase = self._phase(state) if len(self._subscribers) else None
        if phase is not None:
            document |= {"phase": phase[0], "progress": phase[1]}
        return document

    def _phase(self, state: ModelState) -> tuple[str, float | None] | None:
        """Return the phase of a wake, and its progress, as a starting pod reports it."""
        phases = phases_of(self._pods.of_starting(state)) if is_waking(state) else ()
        running = [phase for phase in phases if phase.progress != 1.0]
        return (running[-1].name, running[-1].progress) if running else None

    def _add_wakes(self, rows: list[Document]) -> None:
        for row in rows:
            self._subscribers.add("wake", row["key"], row)
