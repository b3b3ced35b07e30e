"""The gateway of ``wisp up`` as a process: started, watched, started again if it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from wisp_operator.core.runtime_client import RuntimeClient
from wisp_operator.errors import WispError
from wisp_operator.local import config
from wisp_operator.local.processes import backoff
from wisp_operator.local.processes.pods import log_tail
from wisp_operator.local.processes.process import Process
from wisp_plan.distribution import install_command

log = logging.getLogger(__name__)

PROGRAM = "wisp-gateway"
START_TIMEOUT_S = 20.0
POLL_S = 0.02
DRAIN_S = 5


class GatewayFailed(WispError):
    """The gateway did not start."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Settings of the gateway's process.

    Attributes:
        host, port: address for clients.
        directory: file that lists the models.
        demand_url: URL for its demand reports.
        token_keys: file of the keys of tokens for pods and demand.
        limits_state: file for the use of keys' limits.
        log: file for its output.
        log_level: log level of that output.
        allow_origin: origins of web pages that may call it from a browser.
    """

    host: str
    port: int
    directory: Path
    demand_url: str
    token_keys: Path
    limits_state: Path
    log: Path
    log_level: str
    allow_origin: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Address of the gateway for this machine, as ``host:port``."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def arguments(self) -> list[str]:
        """The gateway's command line after the program."""
        where = ["--host", self.host, "--port", str(self.port)]
        reads = ["--directory", str(self.directory), "--demand-url", self.demand_url]
        reads += ["--pod-token-keys", str(self.token_keys), "--limits-state", str(self.limits_state)]
        reads += [word for origin in self.allow_origin for word in ("--allow-origin", origin)]
        return [*reads, *where, "--drain-timeout-s", str(DRAIN_S), "--log-level", self.log_level]


class GatewayProcess:
    """The running gateway."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._process: Process | None = None

    async def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            GatewayFailed: it is not installed, ended, or does not answer in time.
            OSError: its log cannot be written, or no process can be made.
        """
        self._settings.log.unlink(missing_ok=True)
        await self._launch()
        client, deadline = RuntimeClient(), time.monotonic() + START_TIMEOUT_S
        try:
            while not await client.probe_succeeds(self._settings.address, "/livez", 1.0):
                self._require_alive(deadline)
                await asyncio.sleep(POLL_S)
        finally:
            await client.close()

    async def watch(self) -> None:
        """Start it again whenever it ends, until cancelled."""
        crashes = 0
        while self._process is not None:
            started = time.monotonic()
            code = await self._process.wait()
            crashes = backoff.crashes_in_a_row(crashes, time.monotonic() - started)
            log.error(
                "the gateway ended (exit %d), starting it again: %s", code, log_tail(self._settings.log)
            )
            await asyncio.sleep(backoff.delay_s(crashes, was_ready=True))
            crashes = await self._relaunch(crashes)

    async def stop(self, grace_s: float) -> None:
        """Let it finish what it streams for at most ``grace_s`` seconds, then end it."""
        if self._process is not None:
            await self._process.stop(grace_s)

    async def hurry(self, grace_s: float) -> None:
        """Have it end its streams with their error event now, and itself within ``grace_s`` seconds."""
        if self._process is not None:
            await self._process.hurry(grace_s)

    async def _relaunch(self, crashes: int) -> int:
        """Launch it, ever more rarely, until that succeeds; return ``crashes`` and the failed tries."""
        while True:
            try:
                await self._launch()
                return crashes
            except (OSError, GatewayFailed) as error:
                crashes += 1
                delay_s = backoff.delay_s(crashes, was_ready=False)
                log.error(
                    "cannot start the gateway: %s. Mend that; it is tried again in %g s", error, delay_s
                )
                await asyncio.sleep(delay_s)

    async def _launch(self) -> None:
        path = config.program(PROGRAM)
        if path is None:
            raise GatewayFailed(f"{PROGRAM} is not installed. Install it with: {install_command('operator')}")
        environment = config.inherited_environment()
        self._process = await Process.start(
            [path, *self._settings.arguments], environment, self._settings.log
        )

    def _require_alive(self, deadline: float) -> None:
        code = self._process.exit_code if self._process else None
        if code is None and time.monotonic() < deadline:
            return
        why = (
            f"ended with exit code {code}"
            if code is not None
            else f"gave no answer for {START_TIMEOUT_S:.0f} s"
        )
        raise GatewayFailed(f"the gateway {why}: {log_tail(self._settings.log) or 'it left no message'}")
