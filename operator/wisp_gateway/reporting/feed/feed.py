"""The feed: notices what changed, keeps the histories, and writes each event once for all open pages.

While no page is open only the histories are kept: samples, wakes, finished requests.
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
from wisp_gateway.reporting.feed.pages import Page, Pages, View
from wisp_gateway.reporting.feed.pod_reader import Fetch, PodReader, phases_of
from wisp_gateway.reporting.feed.samples import Samples
from wisp_gateway.reporting.feed.wakes import WakeLog
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.registry import ModelRegistry

LOOK_S = 0.25
PERIOD_S = 1.0
MAX_REQUESTS = 200
_ANSWERS = ("/completions", "/messages", "/responses", "/embeddings", "/score", "/rerank")

Document = dict[str, Any]


class Feed:
    """What pages follow.

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
        self._pages = Pages()
        self._has_pages = asyncio.Event()
        self._sent: dict[str, Document] = {}
        self._looked_s = float("-inf")
        self._is_stopping = False

    async def run(self) -> None:
        """Look for changes while a page is open, until cancelled."""
        while True:
            await self._has_pages.wait()
            if self._wakes.is_any_running or self._clock() - self._looked_s >= PERIOD_S:
                self.look()
            await asyncio.sleep(LOOK_S)

    def open(self, view: View, account: str) -> Page:
        """Add a page.

        Raises:
            TooManyPages: there are as many as may be, of all or of ``account``.
        """
        page = self._pages.open(view, account)
        self._has_pages.set()
        return page

    def remove(self, page: Page) -> None:
        """Forget a page."""
        self._pages.remove(page)
        if not len(self._pages):
            self._has_pages.clear()
            self._sent.clear()
            for state in self._registry.states():
                state.observed_phase = None

    def close(self) -> None:
        """End every page: the gateway stops."""
        self._is_stopping = True
        self._pages.close()

    def stop_reading(self) -> None:
        """End the requests to pods that run."""
        self._pods.close()

    def state(self, view: View) -> Document:
        """Return the document of ``/state``."""
        states = [state for state in self._registry.states() if view is None or state.model.key in view]
        return {
            "gateway": self._config.name,
            "status": "stopping" if self._is_stopping else "ready",
            "models": [self._document(state) for state in states],
        }

    def history(self, view: View) -> Document:
        """Return the document of ``/state/history``."""
        samples = self._samples.rows()
        if view is not None:
            samples = [
                sample | {"models": {key: row for key, row in sample["models"].items() if key in view}}
                for sample in samples
            ]
        return {
            "samples": samples,
            "wakes": [row for row in self._wakes.rows() if view is None or row["key"] in view],
            "requests": [
                row if view is None else without_sender(row)
                for row in self._requests
                if view is None or row["key"] in view
            ],
        }

    def every_second(self) -> None:
        """Take a sample, and record the wakes; to be called each second."""
        states, now_s, now = self._registry.states(), self._clock(), self._wall()
        sample = self._samples.take(states, now_s, now)
        if sample is not None:
            self._pages.add_sample(sample)
        self._add_wakes(self._wakes.observe(states, now_s, now))
        self._pages.flush()

    def record(self, client: Client) -> None:
        """Record a finished request, if it asked for an answer."""
        if client.method != "POST" or not client.path.endswith(_ANSWERS):
            return
        row = request_row(client, self._clock() - client.entered_s)
        self._requests.append(row)
        self._pages.add("request", client.model_key, row, without_sender(row))
        if client.usage is not None:
            self._samples.add_prompt(client.model_key, client.usage.prompt_tokens)
        state = self._registry.find(client.model_key)
        wake = self._wakes.first_answer(state, client) if state is not None else None
        self._add_wakes([wake] if wake is not None else [])

    def look(self) -> None:
        """Read pods that are due, and send what changed."""
        states, self._looked_s = self._registry.states(), self._clock()
        self._pods.read_due(states)
        self._add_wakes(self._wakes.observe(states, self._looked_s, self._wall()))
        documents = {state.model.key: self._document(state) for state in states}
        for key, document in documents.items():
            kept = stable(document)
            if self._sent.get(key) != kept:
                self._sent[key] = kept
                self._pages.add("model", key, document)
        for key in self._sent.keys() - documents.keys():
            del self._sent[key]
            self._pages.add("gone", key, {"key": key})
        self._pages.flush()

    def _document(self, state: ModelState) -> Document:
        document = model_document(state, self._config.base_url, self._pods, self._clock())
        phase = self._phase(state) if len(self._pages) else None
        state.observed_phase = phase
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
            self._pages.add("wake", row["key"], row)
