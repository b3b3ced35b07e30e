"""Open-loop client: sends each request at its planned time, whatever became of the ones before.

It measures itself too: how late it sent, how long its event loop stood, and its share of a CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

import uvloop

from wisp_runtime.bench.load.requests import Address
from wisp_runtime.bench.load.stream import Streamed, StreamProtocol
from wisp_runtime.bench.load.trace import Stage
from wisp_runtime.errors import ConfigError, EngineDied

OnProgress = Callable[[int, int], None]
_TICK_S = 0.005
_PROGRESS_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class ClientCost:
    """Cost and lateness of the client itself during a stage.

    Attributes:
        lags_ms: delays of a tick of the event loop, sampled every 5 ms.
        cpu_share: CPU time in units of wall time.
    """

    lags_ms: tuple[float, ...]
    cpu_share: float


def run_stage(
    address: Address, requests: Sequence[bytes], stage: Stage, timeout_s: float, on_progress: OnProgress
) -> tuple[list[Streamed], ClientCost]:
    """Send a stage's requests and return their outcomes, in the order of arrival.

    Args:
        address: server.
        requests: bytes of each of the stage's requests.
        stage: arrival times.
        timeout_s: time limit of one request.
        on_progress: ``on_progress(ended, all)``.
    """
    gc.collect()
    gc.disable()  # a collection would stand in the way of every running stream
    try:
        return uvloop.run(_Client(address, timeout_s).run(requests, stage, on_progress))
    finally:
        gc.enable()


def served_models(address: Address, api_key: str | None) -> list[str]:
    """Return the ids of ``/v1/models``.

    Raises:
        EngineDied: the server cannot be reached or gives no list.
    """
    kind = HTTPSConnection if address.is_tls else HTTPConnection
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    at = f"{address.host}:{address.port}{address.path}/models"
    try:
        with contextlib.closing(kind(address.host, address.port, timeout=10)) as connection:
            connection.request("GET", f"{address.path}/models", headers=headers)
            response = connection.getresponse()
            if response.status != HTTPStatus.OK:
                said = response.read(500).decode(errors="replace")
                raise EngineDied(f"{at} answered HTTP {response.status}: {said} (keys: --api-key)")
            return [str(model["id"]) for model in json.load(response)["data"]]
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        raise EngineDied(
            f"{at} gives no list of models: {error or type(error).__name__}. Is a server there?"
        ) from error


def only_model(names: Sequence[str]) -> str:
    """Return the model that is served.

    Raises:
        ConfigError: the server has none, or several.
    """
    if len(names) == 1:
        return names[0]
    raise ConfigError(f"the server has {len(names)} models ({', '.join(names[:8])}): name one with --model")


class _Client:
    """Client of one stage."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._tls = ssl.create_default_context() if address.is_tls else None
        self._ended = 0

    async def run(
        self, requests: Sequence[bytes], stage: Stage, on_progress: OnProgress
    ) -> tuple[list[Streamed], ClientCost]:
        lags: list[float] = []
        with _background(_sample_lags(lags), self._report(len(requests), on_progress)):
            cpu_s, began_s = time.process_time(), time.perf_counter()
            streams = await self._send_all(requests, stage, began_s)
            share = (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
        on_progress(len(requests), len(requests))
        return streams, ClientCost(tuple(lags), share)

    async def _send_all(self, requests: Sequence[bytes], stage: Stage, began_s: float) -> list[Streamed]:
        if stage.is_sequential:
            return [await self._send(request, time.perf_counter()) for request in requests]
        planned = [began_s + arrival.at_s for arrival in stage.arrivals]
        return await asyncio.gather(*map(self._send, requests, planned))

    async def _send(self, request: bytes, planned_s: float) -> Streamed:
        while (wait_s := planned_s - time.perf_counter()) > 0:  # a timer may be a fraction of a ms early
            await asyncio.sleep(wait_s)
        streamed = Streamed(planned_s, time.perf_counter())
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stream(request, streamed)
        except TimeoutError:
            streamed.error = f"no end within {self._timeout_s:g} s"
        except OSError as error:
            streamed.error = f"connection failed: {error}"
        self._ended += 1
        return streamed

    async def _stream(self, request: bytes, streamed: Streamed) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        transport, _ = await loop.create_connection(
            lambda: StreamProtocol(request, streamed, done),
            self._address.host,
            self._address.port,
            ssl=self._tls,
        )
        try:
            await done
        finally:
            transport.close()

    async def _report(self, total: int, on_progress: OnProgress) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_EVERY_S)
            on_progress(self._ended, total)


async def _sample_lags(lags_ms: list[float]) -> None:
    while True:
        began_s = time.perf_counter()
        await asyncio.sleep(_TICK_S)
        lags_ms.append(max(0.0, 1e3 * (time.perf_counter() - began_s - _TICK_S)))


@contextlib.contextmanager
def _background(*coroutines: Coroutine[Any, Any, None]) -> Iterator[None]:
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
