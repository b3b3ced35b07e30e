"""A network namespace of its own, in which there is only loopback: every port is free, and nothing leaves."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys


def isolate() -> None:
    """Run this program again in such a namespace, unless it runs in one."""
    if "--isolated" not in sys.argv:
        os.execvp("unshare", ["unshare", "-rn", sys.executable, *sys.argv, "--isolated"])
    sys.argv.remove("--isolated")
    set_flags, is_up_and_running = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, set_flags, struct.pack("16sH14s", b"lo", is_up_and_running, b""))
