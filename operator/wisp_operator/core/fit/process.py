"""Fit checks in a child process with limits: files of strangers decide over nothing of this one.

In this process the C parser of JSON would hold the GIL, and with it the event loop and the Lease; a thread
cannot be ended. A child is killed, and its memory goes with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import signal
import sys
from asyncio.subprocess import PIPE, Process

from wisp_operator.core.fit.verdict import FitReport, FitResult
from wisp_operator.core.fit.worker import FitJob, Limits, out_of_memory

WORKER = "wisp_operator.core.fit.worker"
LIMITS = Limits()

log = logging.getLogger(__name__)


class CheckAborted(Exception):
    """A check was ended at one of its limits, or by a fault; the message is a verdict's."""


async def run_isolated(job: FitJob, limits: Limits = LIMITS) -> dict[str, FitResult]:
    """Run ``job`` in a child process; cancelled, it kills the child.

    Raises:
        CheckAborted: no reports within the limits.
    """
    try:
        # -P: the working directory is not searched for modules.
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", WORKER),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,  # a signal to this process' group is not the child's
        )
    except OSError as error:
        raise CheckAborted(
            f"No process could be made to check it ({error.strerror}); a pod will measure it."
        ) from error
    try:
        async with asyncio.timeout(limits.wall_s):
            output, errors = await child.communicate(pickle.dumps((limits, job)))
    except TimeoutError as error:
        raise CheckAborted(_too_slow(limits)) from error
    finally:
        await _end(child)
    if child.returncode:
        raise CheckAborted(_explain(job, child.returncode, errors, limits))
    results = json.loads(output).items()
    return {name: FitResult(FitReport(**found["report"]), found["fault"]) for name, found in results}


async def _end(child: Process) -> None:
    if child.returncode is None:
        child.kill()
        await child.wait()


def _too_slow(limits: Limits) -> str:
    return f"The model's files could not be read within {limits.wall_s:g} s; a pod will measure it."


def _explain(job: FitJob, exit_code: int, errors: bytes, limits: Limits) -> str:
    match -exit_code:
        case signal.SIGXCPU | signal.SIGKILL:
            return f"The model's files take more than {limits.cpu_s} s to check; a pod will measure it."
        case signal.SIGALRM:
            return _too_slow(limits)
        case signal.SIGTERM | signal.SIGINT | signal.SIGHUP:
            return "The check was ended from outside; a pod will measure the model."
        case _ if b"MemoryError" in errors:
            return out_of_memory(limits)
    log.error(
        "the fit check of %s ended with exit code %d; a pod will measure the model. Report it with this: %s",
        *(job.model.key, exit_code, errors[-2000:].decode(errors="replace")),
    )
    return "The check ended with an error, which the log has; a pod will measure the model."
