"""One ``wisp up``: starts the gateway and the controller, re-reads the manifests, ends all in order.

Prints nothing: the command line renders a :class:`Session` (``cli/commands/up.py``).
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wisp_http.tracing import open_tracer
from wisp_operator.api import InferenceModel
from wisp_operator.core.access.tokens import TokenKeys, make_keys_file
from wisp_operator.core.wake_spans import WakeSpans
from wisp_operator.desired.settings import BuildSettings
from wisp_operator.errors import WispError
from wisp_operator.local import config
from wisp_operator.local.admission import access_warning
from wisp_operator.local.controller import CheckFit, Controller
from wisp_operator.local.gateway.demand_endpoint import DemandServer
from wisp_operator.local.gateway.directory import DirectoryFile
from wisp_operator.local.gateway.process import DRAIN_S, GatewayProcess, GatewaySettings
from wisp_operator.local.key_file import KeyFile
from wisp_operator.local.manifest_files import ManifestFiles
from wisp_operator.local.pod_template import Device
from wisp_operator.local.processes.cluster import LocalCluster
from wisp_operator.local.session_folder import FolderUnwritable

log = logging.getLogger(__name__)

POD_GRACE_S = DRAIN_S + 3.0
GATEWAY_GRACE_S = DRAIN_S + 10.0
"""Time to end of the gateway: the drain, then the error event of what still runs, on a busy machine too."""
HURRIED_S = 10.0
"""Time for these events alone, of a gateway that was asked twice: it ends as soon as they are sent."""
REREAD_S = 1.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of ``wisp up``.

    Attributes:
        host, port: address of the gateway.
        device: ``auto`` takes what the manifest says, and the CPU where there is no GPU.
        log_level: log level of this program and the gateway.
        api_keys: file of the keys for models that require one.
        allow_origin: origins of web pages that may call the gateway from a browser.
        are_logs_kept: true if the session's folder stays afterwards.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    device: Device = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    api_keys: Path | None = None
    allow_origin: tuple[str, ...] = ()
    are_logs_kept: bool = False


class Session:
    """A running session.

    Attributes:
        stopping: event, set once the session should end.
        tokens: tokens that its pods and its demand endpoint ask for.
    """

    def __init__(self, options: Options, files: ManifestFiles, home: Path, check_fit: CheckFit) -> None:
        self.options, self.home = options, home
        self.stopping = asyncio.Event()
        self._stop_at_once = asyncio.Event()
        self._files = files
        self._directory = DirectoryFile(home / "directory.json")
        self._token_keys = make_keys_file(home / "token-keys")
        self.tokens = TokenKeys(self._token_keys)
        self._cluster = LocalCluster(
            home / "pods", lambda: self.controller.wake(), options.device, self.tokens.of_pods
        )
        self._wakes = WakeSpans(open_tracer(config.trace_endpoint(), "wisp-operator"))
        self.controller = Controller(
            self._cluster,
            fit=check_fit,
            publish=self._directory.write,
            settings=BuildSettings(node_cache_dir=str(config.cache_dir())),
            tokens=self.tokens,
            api_keys=options.api_keys,
            are_logs_kept=options.are_logs_kept,
            wakes=self._wakes,
        )
        self._demand = DemandServer(
            self.controller.record_demand,
            self.tokens,
            lambda: self.controller.publish_failure is None,
            self.controller.stop_pods,
        )
        self._gateway: GatewayProcess | None = None
        self._keys = KeyFile(options.api_keys) if options.api_keys is not None else None

    @property
    def url(self) -> str:
        """Base URL of the gateway, for clients on this machine."""
        return f"http://{self._settings().address}"

    @property
    def models(self) -> Sequence[InferenceModel]:
        """The models being served."""
        return self.controller.models

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start everything; end everything at the end, whatever happened.

        Raises:
            WispError: the gateway did not start, or a model cannot run on this machine.
        """
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.stop)
        try:
            await self._start()
            async with asyncio.TaskGroup() as tasks:
                followers = [tasks.create_task(self.controller.run()), tasks.create_task(self._reread())]
                followers += [tasks.create_task(self._gateway.watch())] if self._gateway else []
                yield
                for follower in followers:
                    follower.cancel()
        finally:
            try:
                await self._end()
            finally:
                self._wakes.close()

    def stop(self) -> None:
        """End in order; asked twice, at once."""
        if self.stopping.is_set():
            self._stop_at_once.set()
        self.stopping.set()

    def _settings(self) -> GatewaySettings:
        return GatewaySettings(
            host=self.options.host,
            port=self.options.port,
            directory=self._directory.path,
            demand_url=self._demand.url,
            token_keys=self._token_keys,
            limits_state=self.home / "limits.json",
            log=self.home / "gateway.log",
            log_level=self.options.log_level,
            allow_origin=self.options.allow_origin,
        )

    async def _start(self) -> None:
        await self._demand.start()
        await self.controller.set_models(self._files.models)
        if warning := access_warning(self.options.host, self.models, self.options.api_keys):
            log.warning("%s", warning)
        self._check_keys()
        self.controller.reconcile_now()
        if self.controller.publish_failure is not None:
            raise FolderUnwritable(self.home, self.controller.publish_failure)
        self._gateway = GatewayProcess(self._settings())
        await self._gateway.start()

    async def _reread(self) -> None:
        """Follow the manifests; one that became invalid changes nothing but the log."""
        while True:
            await asyncio.sleep(REREAD_S)
            self._check_keys()
            try:
                if self._files.changed():
                    await self.controller.set_models(self._files.read())
                    log.info("read %s again", ", ".join(self._files.names))
            except WispError as error:
                log.error("the manifests changed, but stay as they were: %s", error)
            except Exception:
                log.exception("the manifests changed, but could not be served; the models stay as they were")

    def _check_keys(self) -> None:
        if self._keys is not None:
            self._keys.check()

    async def _end(self) -> None:
        """Stop the gateway, so that streams can finish, then the pods; at once if hurried or on error."""
        orderly = asyncio.create_task(self._end_in_order())
        hurried = asyncio.create_task(self._stop_at_once.wait())
        await asyncio.wait({orderly, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if orderly.done() and orderly.exception() is None:
            return
        orderly.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await orderly
        finally:
            await self._end_at_once()

    async def _end_in_order(self) -> None:
        if self._gateway is not None:
            await self._gateway.stop(GATEWAY_GRACE_S)
        await self._cluster.close(POD_GRACE_S)
        await self._demand.close()

    async def _end_at_once(self) -> None:
        """End gateway, pods and demand endpoint, in this order, each also where another fails."""
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self._demand.close)
            last_first.push_async_callback(self._cluster.close, 0.0)
            if self._gateway is not None:
                last_first.push_async_callback(self._gateway.hurry, HURRIED_S)
