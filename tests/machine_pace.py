"""Times of tests on a machine that is busy with other work.

A test waits for a condition. Where something must be over soon, its limit is that of an idle machine times
:attr:`Pace.stretch`, which is measured meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SPIN = """
import time
print(flush=True)
while True:
    wall_s, cpu_s = time.monotonic(), time.process_time()
    while (worked_s := time.process_time() - cpu_s) < 0.01:
        pass
    print(worked_s, time.monotonic() - wall_s, flush=True)
    time.sleep(0.05)
"""


class Pace:
    """Speed of a process that computes: 1 on an idle machine; :func:`pace` measures."""

    stretch = 1.0
    """Wall time that a second of CPU time takes, the largest measured; set when the block is left."""


@contextmanager
def pace() -> Iterator[Pace]:
    """Measure the machine's speed while the block runs, in a process of its own."""
    measured = Pace()
    command = [sys.executable, "-S", "-E", "-c", _SPIN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as spin:
        assert spin.stdout is not None
        spin.stdout.readline()
        try:
            yield measured
        finally:
            time.sleep(0.1)  # at least one measurement
            spin.kill()
        complete = (line.split() for line in spin.stdout if line.endswith("\n"))
        measured.stretch = max([1.0, *(float(wall_s) / float(cpu_s) for cpu_s, wall_s in complete)])
