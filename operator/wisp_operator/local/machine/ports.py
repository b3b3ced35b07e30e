"""TCP ports of this machine: a free one, and the process that holds a taken one."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from wisp_operator.errors import WispError
from wisp_operator.local.pod_template import LOOPBACK

LISTENING = "0A"
QUIET_PORTS = range(20_000, 30_000)
"""Ports below those of connections and of ``bind(0)`` (32,768 up) and below NodePorts (30,000 up)."""
TRIES = 100
MAX_PORT = 65_535


class PortTaken(WispError):
    """Something else listens where the gateway should."""


def free_port() -> int:
    """Choose a TCP port of the loopback that was free just now; the system gives it to no connection."""
    for port in random.sample(QUIET_PORTS, TRIES):
        with suppress(OSError), socket.socket() as listener:
            listener.bind((LOOPBACK, port))
            return port
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])


def require_free(host: str, port: int) -> None:
    """Make sure that ``host:port`` can be listened on.

    Raises:
        PortTaken: it cannot; the message names the process that has it, and the remedy.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except (OSError, OverflowError) as error:
        raise PortTaken(_refusal(host, port, error)) from error


def holder(port: int) -> str | None:
    """Name the process that listens on ``port``: ``nginx (pid 17)``; None if none is visible."""
    sockets = set(_listening_sockets(port))
    if not sockets:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if os.readlink(descriptor) in sockets:
                    return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return None


def _listening_sockets(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{fields[9]}]"


def _refusal(host: str, port: int, error: OSError | OverflowError) -> str:
    code = getattr(error, "errno", None)
    if code == errno.EADDRINUSE:
        who = holder(port)
        return (
            f"port {port} of {host} is in use{f' by {who}' if who else ''}. "
            f"Stop that, or choose another with --port {port + 1 if port < MAX_PORT else port - 1}."
        )
    if code in (errno.EACCES, errno.EPERM):
        return f"port {port} of {host} needs root. Choose one above 1023, e.g. --port 8080."
    return f"cannot listen on {host}, port {port}: {error}. Choose an address of this machine with --host."
