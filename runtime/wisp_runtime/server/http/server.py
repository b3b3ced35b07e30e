"""The web server of one runtime process, from loading the tokenizer to the last open response."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from wisp_http.limits import ConnectionLimits
from wisp_http.protocol import LimitedProtocol
from wisp_http.tracing import open_tracer
from wisp_runtime.config import ServeConfig, trace_endpoint
from wisp_runtime.engine.transport.client import Engine
from wisp_runtime.engine.transport.messages import Fatal
from wisp_runtime.errors import ConfigError, ErrorBudgetSpent, RuntimeFailure, TokenizerUnreadable
from wisp_runtime.server.engine_monitor import wait_for_silence
from wisp_runtime.server.http.api_key import ApiKeyCheck
from wisp_runtime.server.http.gateway_token import GatewayTokenCheck
from wisp_runtime.server.http.health import BootstrapApp
from wisp_runtime.server.http.request_log import RequestLog
from wisp_runtime.server.parsing.defaults import notes_of, read_defaults
from wisp_runtime.server.parsing.strict_model import build
from wisp_runtime.server.pooling.settings import read_pooling
from wisp_runtime.server.service import Service
from wisp_runtime.server.startup_log import POLL_S, failure_of, say
from wisp_runtime.server.text.template_messages import ChatTemplate, TemplateFailed
from wisp_runtime.server.text.template_renderer import RendererBusy, TemplateRenderer
from wisp_runtime.server.text.tokenizer import load_tokenizer, read_template

ABORT_WAIT_S = 2.0  # time for open responses to send the reason of their end
KEEP_ALIVE_S = 75  # longer than the gateway keeps an idle connection, so that it closes first


class HttpServer:
    """Serves one engine on a listening socket."""

    def __init__(self, config: ServeConfig, engine: Engine, listener: socket.socket) -> None:
        self.service = Service(config, engine, created_s=int(time.time()))
        self._listener = listener
        self._bootstrap = BootstrapApp(self.service)
        self._tracer = open_tracer(trace_endpoint(config), "wisp-runtime")
        keyed = ApiKeyCheck(self._bootstrap, config.api_key)
        checked = GatewayTokenCheck(keyed, config.pod_token_sha256)
        self._web = _WebServer(_web_config(RequestLog(checked, config.name, self._tracer)))

    async def run(self, stop: asyncio.Event, skip_wait: asyncio.Event) -> Fatal | None:
        """Serve until ``stop`` is set or something fails; return the failure, or None.

        Args:
            stop: drain: no new requests, running ones may finish.
            skip_wait: do not wait for running requests.
        """
        serving = asyncio.create_task(self._web.serve(sockets=[self._listener]))
        loading = asyncio.create_task(_open(self.service, self._bootstrap))
        try:
            failure = await self._until_over(stop, loading)
            if failure is None:
                self.service.is_draining = True
                await self._drain(skip_wait)
            self.service.failure = failure
            await self._abort_running()
        finally:
            loading.cancel()
            self._web.should_exit = True
            await asyncio.wait([serving])
            await self.service.close()
            if self._tracer is not None:
                self._tracer.close()
        return failure

    async def _until_over(self, stop: asyncio.Event, loading: asyncio.Task[None]) -> Fatal | None:
        engine, spent = self.service.engine, self.service.budget.is_spent
        stopping, failing = asyncio.create_task(stop.wait()), asyncio.create_task(spent.wait())
        silence = asyncio.create_task(wait_for_silence(engine, self.service.has_running))
        waits: set[asyncio.Future[Any]] = {stopping, failing, silence, loading, engine.failed}
        try:
            while True:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if engine.failed.done():
                    return engine.failed.result()
                if loading in waits and loading.done():
                    if failure := _outcome(loading):
                        return failure
                    waits.discard(loading)
                if failing.done():
                    return failure_of(
                        ErrorBudgetSpent("too many requests failed within a minute; see the log.")
                    )
                if silence.done():
                    return failure_of(silence.result())
                if stopping.done():
                    return None
        finally:
            for task in (stopping, failing, silence):
                task.cancel()

    async def _drain(self, skip_wait: asyncio.Event) -> None:
        """Wait until running requests have finished, at most the drain timeout."""
        idle, skipped = asyncio.create_task(self.service.idle()), asyncio.create_task(skip_wait.wait())
        waits: set[asyncio.Future[Any]] = {idle, skipped, self.service.engine.failed}
        timeout_s = self.service.config.drain_timeout_s
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        skipped.cancel()

    async def _abort_running(self) -> None:
        """Abort running requests; each response ends with the reason."""
        self.service.abort_all()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.service.idle(), ABORT_WAIT_S)


def _outcome(loading: asyncio.Task[None]) -> Fatal | None:
    try:
        loading.result()
    except RuntimeFailure as error:
        return failure_of(error)
    return None


async def _open(service: Service, bootstrap: BootstrapApp) -> None:
    """Import the API, load the tokenizer and compile the chat template while the engine reads the weights."""
    bootstrap.app = await asyncio.to_thread(_import_app, service)
    config, engine = service.config, service.engine
    while "://" in config.model and not config.model.startswith("file://") and not _is_pulled(engine):
        await asyncio.sleep(POLL_S)  # the engine's process downloads
    path = await asyncio.to_thread(_resolve, config)
    template = await asyncio.to_thread(read_template, path)
    compiling = asyncio.create_task(_start_templates(template, path))
    try:
        tokenizer = await asyncio.to_thread(load_tokenizer, path)
        defaults = await asyncio.to_thread(read_defaults, path, tokenizer, config.generation_config)
        names = (*config.names, config.model)
        service.pooling = await asyncio.to_thread(read_pooling, path, names, tokenizer)
        await asyncio.to_thread(_build_models)
        service.open(path, tokenizer, await compiling, defaults)
    finally:
        compiling.cancel()
    await engine.ready.wait()
    for line in notes_of(tokenizer, defaults, service.info.vocab_size):
        say(line)


def _import_app(service: Service) -> ASGIApp:
    from wisp_runtime.server.api.app import create_app  # FastAPI: half of this process's start-up

    return create_app(service)


def _build_models() -> None:
    """Build the models of most requests' bodies, so that the first request does not wait for it."""
    from wisp_runtime.server.parsing.chat_request import ChatRequest
    from wisp_runtime.server.parsing.completion_request import CompletionRequest

    for model in (ChatRequest, CompletionRequest):
        build(model)


def _resolve(config: ServeConfig) -> Path:
    from wisp_runtime.sources.resolve import resolve  # brings NumPy

    return resolve(config.model, config.revision, config.cache_dir)


async def _start_templates(template: ChatTemplate | None, path: Path) -> TemplateRenderer | None:
    if template is None:
        return None
    try:
        return await TemplateRenderer.start(template)
    except TemplateFailed as error:
        raise TokenizerUnreadable(
            f"{path}: the model's chat template cannot be used: {error}. Correct or remove the template."
        ) from error
    except (RendererBusy, OSError) as error:
        raise ConfigError(
            f"No process can be started that renders the model's chat template: {error}. What it wrote is in "
            "the log; the template is not at fault. Raise the limits of this process (ulimit -a, the "
            "container's memory and pids)."
        ) from error


def _is_pulled(engine: Engine) -> bool:
    return any(phase.name == "pull" and phase.is_done for phase in engine.phases)


def _web_config(app: ASGIApp) -> uvicorn.Config:
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )


class _Protocol(LimitedProtocol):
    """One connection; a gateway's heads, with what it adds, are within these limits."""

    limits = ConnectionLimits(
        max_head_bytes=32 * 1024,
        max_headers=192,
        max_connections=2048,
        write_timeout_s=180.0,  # a gateway that has a slow client takes 64 KiB within 120 s
        min_write_bytes=1,
    )


class _WebServer(uvicorn.Server):
    """Uvicorn without its own signal handlers: draining comes before closing."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to ``process.py``."""
        yield
