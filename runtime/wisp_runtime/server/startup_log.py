"""Start-up log on stderr, and the termination message as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from wisp_http.log_lines import JsonLines
from wisp_plan.units import format_size
from wisp_runtime.engine.transport.client import Engine
from wisp_runtime.engine.transport.messages import Fatal, Phase
from wisp_runtime.errors import RuntimeFailure

POLL_S = 0.05
MAX_LOG_BYTES = 4096  # Kubernetes truncates a termination message there

log = logging.getLogger(__name__)


def say(line: str) -> None:
    """Write one line of progress to stderr, as a record of the log where that is of JSON."""
    root = logging.getLogger()
    if any(isinstance(handler.formatter, JsonLines) for handler in root.handlers):
        root.handle(root.makeRecord(__name__, logging.INFO, "", 0, line, (), None))  # at any level of the log
        return
    sys.stderr.write(f"wisp-runtime: {line}\n")
    sys.stderr.flush()


async def follow_phases(engine: Engine, is_open: Callable[[], bool], began_s: float) -> None:
    """Log each start-up phase as it ends, and readiness once ``is_open`` returns True."""
    logged: set[str] = set()
    while not engine.failed.done():
        for phase in engine.phases:
            if phase.is_done and phase.name not in logged:
                logged.add(phase.name)
                say(phase_line(phase))
        if is_open():
            say(f"ready after {time.monotonic() - began_s:.2f} s")
            return
        await asyncio.sleep(POLL_S)


def phase_line(phase: Phase) -> str:
    """Return a phase's line: its name, its time, its bytes if it moved any, and its note."""
    size = f"  {format_size(phase.bytes)}" if phase.bytes else ""
    note = f"  {phase.note}" if phase.note else ""
    return f"{phase.name:<10} {phase.seconds:7.2f} s{size}{note}"


def failure_of(error: RuntimeFailure) -> Fatal:
    """Return an error as the message in which the engine reports its own."""
    return Fatal(error.reason, error.message, error.exit_code, error.details)


def report_failure(failure: Fatal, termination_log: Path | None) -> None:
    """Log the failure; write it to ``termination_log`` too, if there is one."""
    say(f"{failure.reason}: {failure.message}")
    write_termination_log(failure, termination_log)


def write_termination_log(failure: Fatal, termination_log: Path | None) -> None:
    """Write the failure to ``termination_log``, if there is one."""
    if termination_log is None:
        return
    try:
        termination_log.write_text(termination_message(failure), "utf-8")
    except OSError as error:
        log.error("cannot write the termination log %s: %s", termination_log, error)


def termination_message(failure: Fatal) -> str:
    """Return the termination log's JSON, without the details if they make it too long."""
    content = {"reason": failure.reason, "message": failure.message, "details": failure.details}
    text = json.dumps(content, default=str)
    if len(text) > MAX_LOG_BYTES:
        text = json.dumps(content | {"details": {}, "message": failure.message[: MAX_LOG_BYTES // 8]})
    return text
