"""The process that renders chat templates: ``python -m wisp_runtime.server.text.template_process FD``.

A template comes with a model, so it is a program of strangers. Counting what it does inside the server
bounds nothing: one ``+`` may double a string, one ``**`` may run for hours without a signal being handled.
Here the kernel counts: address space by a limit that makes the allocation fail, processor time by a limit
that ends the process. The server starts another.

FD is its end of a socket pair. The first request has the template, each further one messages.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import signal
import socket
import sys
import time
from typing import Any

from wisp_runtime.server.text.template import CompiledTemplate
from wisp_runtime.server.text.template_messages import (
    ANSWER,
    CPU_S,
    MAX_REASON_CHARS,
    MEMORY_BYTES,
    REQUEST,
    TOO_MUCH_MEMORY,
    Outcome,
    TemplateFailed,
)

OOM_SCORE = "1000"  # the highest: the kernel ends this process before the container's others


def main(arguments: list[str]) -> int:
    """Compile the template of the first request and render the others until the server is gone."""
    _limit_process()
    with socket.socket(fileno=int(arguments[0])) as connection, contextlib.suppress(ConnectionError):
        compiled: CompiledTemplate | None = None
        while request := _receive(connection):
            _limit_cpu()
            outcome, text = Outcome.DONE, b""
            try:
                if compiled is None:
                    compiled = CompiledTemplate(**json.loads(request))
                else:
                    text = compiled.render(**json.loads(request)).encode("utf-8", "replace")
            except MemoryError:
                outcome, text = Outcome.OUT_OF_MEMORY, TOO_MUCH_MEMORY.encode()
            except (TemplateFailed, RecursionError) as error:
                outcome, text = Outcome.FAILED, str(error)[:MAX_REASON_CHARS].encode("utf-8", "replace")
            connection.sendall(ANSWER.pack(outcome, len(text)) + text)
            if outcome is Outcome.OUT_OF_MEMORY:
                return 1
    return 0


def _limit_process() -> None:
    """Bound memory, files and processes for good; leave the end to the server."""
    for kind, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _limit(kind, value)
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(OOM_SCORE)


def _limit_cpu() -> None:
    """Have the kernel end this process after ``CPU_S`` further seconds of processor time (SIGXCPU)."""
    until_s = math.ceil(time.process_time()) + CPU_S
    hard_s = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (_at_most(until_s, hard_s), hard_s))


def _limit(kind: int, value: int) -> None:
    """Set a limit for good, or keep the lower one that this process was started with."""
    value = _at_most(value, resource.getrlimit(kind)[1])
    resource.setrlimit(kind, (value, value))


def _at_most(value: int, hard: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _receive(connection: socket.socket) -> bytes:
    """Return one request, or nothing if the server is gone."""
    header = _receive_bytes(connection, REQUEST.size)
    return _receive_bytes(connection, REQUEST.unpack(header)[0]) if header else b""


def _receive_bytes(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view: Any = memoryview(data)
    while view and (count := connection.recv_into(view)):
        view = view[count:]
    return b"" if view else bytes(data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
