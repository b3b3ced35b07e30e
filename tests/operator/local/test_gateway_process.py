"""The gateway's process under ``wisp up``: a start that fails is tried again, and ends nothing else."""

import asyncio
import errno
import time
from contextlib import suppress

from wisp_operator.core.runtime_client import RuntimeClient
from wisp_operator.local import config
from wisp_operator.local.gateway.process import GatewayProcess, GatewaySettings
from wisp_operator.local.processes import backoff
from wisp_operator.local.processes.process import Process

TIMEOUT_S = 60
ENDS_ONCE = """#!/bin/sh
echo run
[ -e "$0.ran" ] && exec sleep 600
touch "$0.ran"
exit 3
"""


async def answers(*_):
    return True


async def until(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.02)


def settings(folder):
    return GatewaySettings(
        host="127.0.0.1",
        port=1,
        directory=folder / "directory.json",
        demand_url="http://127.0.0.1:1/demand",
        token_keys=folder / "token-keys",
        limits_state=folder / "limits.json",
        log=folder / "gateway.log",
        log_level="info",
    )


def test_a_gateway_that_cannot_be_started_again_is_tried_until_it_can(tmp_path, monkeypatch, caplog):
    program, log = tmp_path / "wisp-gateway", tmp_path / "gateway.log"
    program.write_text(ENDS_ONCE)
    program.chmod(0o755)
    log.write_text("of an earlier wisp up\n")
    start, starts = Process.start, []

    async def second_fails(command, environment, log):
        starts.append(command)
        if len(starts) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return await start(command, environment, log)

    installed = [str(program), str(program), None, str(program)]
    monkeypatch.setattr(Process, "start", second_fails)
    monkeypatch.setattr(config, "program", lambda _: installed.pop(0))
    monkeypatch.setattr(backoff, "delay_s", lambda crashes, was_ready: 0.0)
    monkeypatch.setattr(RuntimeClient, "probe_succeeds", answers)

    async def scenario():
        gateway = GatewayProcess(settings(tmp_path))
        await gateway.start()
        watch = asyncio.create_task(gateway.watch())
        try:
            await until(lambda: watch.done() or log.read_text() == "run\nrun\n")
            assert not watch.done(), watch.exception()
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await gateway.stop(0)

    asyncio.run(scenario())
    assert "cannot start the gateway: [Errno 28] No space left on device" in caplog.text
    assert "wisp-gateway is not installed" in caplog.text
