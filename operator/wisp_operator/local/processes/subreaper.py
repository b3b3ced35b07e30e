"""The first process of a local pod: when its owner or its main process ends, all of the pod ends.

:mod:`.process` runs it as a script (``python -I -S subreaper.py OWNER_PID COMMAND…``), so it stays within
the standard library and starts in milliseconds. It is what a container's process 1 and its kernel
namespace are to a kubelet: orphans become its children, and nothing it started outlives it.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = 127


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process (Linux ``prctl(2)``)."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def start(command: list[str]) -> int:
    """Fork and exec ``command``; it dies with this process. Returns its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(NOT_STARTED)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(NOT_STARTED)


def children_of(parent: int) -> Iterator[int]:
    """Yield the pids whose parent is ``parent``, read from ``/proc``."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2]
        except OSError:  # it ended meanwhile
            continue
        if int(after_name.split()[1]) == parent:
            yield int(entry.name)


def end_the_rest() -> None:
    """Kill and reap every descendant: as each dies, its own children become ours."""
    while True:
        for pid in children_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def wait_for(main_pid: int) -> int:
    """Reap orphans until the main process ends; return its exit code, or 128 + the signal that ended it."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == main_pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def main(owner: int, command: list[str]) -> int:
    """Run ``command`` until it or the process ``owner`` ends, then end what is left."""
    signals = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
    if os.getppid() != owner:
        return 128 + signal.SIGHUP
    main_pid = start(command)

    def owner_is_gone(*_: object) -> None:
        end_the_rest()
        os._exit(128 + signal.SIGHUP)

    def pass_on(*_: object) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(main_pid, signal.SIGTERM)

    signal.signal(signal.SIGHUP, owner_is_gone)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    code = wait_for(main_pid)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the exit code is known; none replaces it now
    end_the_rest()
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
