"""Child process of a fit check: a job on stdin, its reports on stdout, within limits that it sets itself.

Started by :mod:`.process`, as ``python -m wisp_operator.core.fit.worker``.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from wisp_operator.api import InferenceModel
from wisp_operator.core.fit.sources import files_of
from wisp_operator.core.fit.verdict import Device, FitReport, FitResult, inspect
from wisp_operator.errors import SourceError
from wisp_plan.units import format_size

MAPPED_BYTES = 1 << 30
"""Address space beside data: libraries, and the locales, which take 220 MiB on some machines."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one check.

    Attributes:
        memory_bytes: data, that is heap and other private memory. Two checks at a time leave room in the
            1 GiB of the operator's pod.
        cpu_s: CPU time; Qwen3-Next, with 512 experts a layer the slowest published one, takes 2 s.
        wall_s: time until the reports, of which slow hubs take most.
    """

    memory_bytes: int = 320 << 20
    cpu_s: int = 10
    wall_s: float = 30.0


@dataclass(frozen=True, slots=True)
class FitJob:
    """A model to check against devices.

    Attributes:
        devices: devices by the name under which each is reported.
        hub_endpoint, hub_token: base URL of the hub, and the token sent to it.
        sees_node: argument of :func:`.sources.files_of`.
    """

    model: InferenceModel
    devices: Mapping[str, Device]
    hub_endpoint: str = ""
    hub_token: str = ""
    sees_node: bool = True

    def run(self) -> dict[str, FitResult]:
        """Check the model against every device; reads files, or from the network."""
        try:
            files = files_of(
                self.model.spec.model,
                endpoint=self.hub_endpoint,
                token=self.hub_token,
                sees_node=self.sees_node,
            )
        except SourceError as error:
            return self.unknown(str(error))
        return {name: inspect(self.model, files, device) for name, device in self.devices.items()}

    def unknown(self, message: str) -> dict[str, FitResult]:
        """Return results without a verdict."""
        devices = self.devices.items()
        return {name: FitResult(FitReport("Unknown", message, gpu=device.name)) for name, device in devices}


def out_of_memory(limits: Limits) -> str:
    """Message of a check that needs more memory than its limit."""
    size = format_size(limits.memory_bytes)
    return f"The model's files take more than {size} of memory to check; a pod will measure it."


def _limit(limits: Limits) -> None:
    """Limit this process; the alarm ends it also where the parent was killed."""
    for kind, value in (
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_AS, limits.memory_bytes + MAPPED_BYTES),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    signal.setitimer(signal.ITIMER_REAL, limits.wall_s + 1.0)
    os.nice(10)


def main() -> None:
    """Read ``(limits, job)`` from stdin, check, and write the results as JSON."""
    limits, job = pickle.load(sys.stdin.buffer)
    _limit(limits)
    try:
        results = job.run()
    except MemoryError:
        results = job.unknown(out_of_memory(limits))
    json.dump({name: asdict(result) for name, result in results.items()}, sys.stdout)


if __name__ == "__main__":
    main()
