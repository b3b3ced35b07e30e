"""One ``wisp up``: everything it starts, what it re-reads, and how it all ends.

Shows nothing: the command line looks at :class:`Session` and draws (``cli/commands/up.py``).
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wisp_operator.api import InferenceModel
from wisp_operator.desired.settings import BuildSettings
from wisp_operator.errors import WispError
from wisp_operator.local import config
from wisp_operator.local.controller import Ask, Controller
from wisp_operator.local.gateway.demand_endpoint import DemandServer
from wisp_operator.local.gateway.directory import DirectoryFile
from wisp_operator.local.gateway.process import Front, FrontSettings
from wisp_operator.local.manifest_files import ManifestFiles
from wisp_operator.local.pod_template import Device
from wisp_operator.local.processes.cluster import LocalCluster

log = logging.getLogger(__name__)

GRACE_S = 5.0
REREAD_S = 1.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Options:
    """What the user of ``wisp up`` chose.

    Attributes:
        host, port: of the gateway.
        device: ``auto`` takes what the manifest says, and the CPU where there is no GPU.
        log_level: of this program and the gateway.
        api_keys: file of the keys for models that ask for one.
        are_logs_kept: whether the folder of the run stays afterwards.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    device: Device = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    api_keys: Path | None = None
    are_logs_kept: bool = False


class Session:
    """What runs. ``stopping`` is set once it should end."""

    def __init__(self, options: Options, files: ManifestFiles, home: Path, ask: Ask) -> None:
        self.options, self.home = options, home
        self.stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._files = files
        self._directory = DirectoryFile(home / "directory.json")
        self._cluster = LocalCluster(home / "pods", lambda: self.controller.wake(), options.device)
        self.controller = Controller(
            self._cluster,
            fit=ask,
            publish=self._directory.write,
            settings=BuildSettings(node_cache_dir=str(config.cache_dir())),
            api_keys=options.api_keys,
            are_logs_kept=options.are_logs_kept,
        )
        self._demand = DemandServer(self.controller.hear)
        self._front: Front | None = None

    @property
    def url(self) -> str:
        """Of the gateway, as clients on this machine write it."""
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
                followers += [tasks.create_task(self._front.watch())] if self._front else []
                yield
                for follower in followers:
                    follower.cancel()
        finally:
            await self._end()

    def stop(self) -> None:
        """End in order; asked twice, at once."""
        if self.stopping.is_set():
            self._hurry.set()
        self.stopping.set()

    def _settings(self) -> FrontSettings:
        return FrontSettings(
            host=self.options.host,
            port=self.options.port,
            directory=self._directory.path,
            demand_url=self._demand.url,
            log=self.home / "gateway.log",
            log_level=self.options.log_level,
        )

    async def _start(self) -> None:
        await self._demand.start()
        await self.controller.set_models(self._files.models)
        self.controller.reconcile_now()
        self._front = Front(self._settings())
        await self._front.start()

    async def _reread(self) -> None:
        """Follow the manifests; one that became invalid changes nothing but the log."""
        while True:
            await asyncio.sleep(REREAD_S)
            try:
                if self._files.changed():
                    await self.controller.set_models(self._files.read())
                    log.info("read %s again", ", ".join(self._files.names))
            except WispError as error:
                log.error("the manifests changed, but stay as they were: %s", error)

    async def _end(self) -> None:
        """Stop the gateway first, so that streams can finish, then the pods; at once if hurried."""
        orderly = asyncio.create_task(self._end_in_order())
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({orderly, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if not orderly.done():
            orderly.cancel()
            with suppress(asyncio.CancelledError):
                await orderly
            await self._end_in_order(0.0)
        hurried.cancel()

    async def _end_in_order(self, grace_s: float = GRACE_S) -> None:
        if self._front is not None:
            await self._front.stop(grace_s)
        await self._cluster.close(grace_s)
        await self._demand.close()
