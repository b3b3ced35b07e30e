"""A Deployment's pod template, translated into one process of this machine.

Pure: a manifest in, an argument vector, an environment and probes out; ``processes`` runs them. Where a
container has its own file system and address, a process shares ours: mount paths become host paths, the
listening port is one that was free, and the address is the loopback.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wisp_operator.desired.pod.volumes import CACHE_DIR
from wisp_operator.errors import WispError

LOOPBACK = "127.0.0.1"
Device = Literal["auto", "cpu", "cuda"]
DEFAULT_COMMAND = ("wisp-runtime",)


class NotLocal(WispError):
    """A pod template asks for something that a process on this machine cannot have."""


@dataclass(frozen=True, slots=True)
class Probe:
    """An HTTP probe as the kubelet reads it; a probe fails after ``period_s * failures`` of bad answers."""

    path: str
    period_s: float = 10.0
    timeout_s: float = 1.0
    failures: int = 3

    @property
    def failure_window_s(self) -> float:
        """Seconds of bad answers after which the probe has failed."""
        return self.period_s * self.failures


@dataclass(frozen=True, slots=True)
class Template:
    """One pod as a process.

    Attributes:
        digest: changes whenever the pod template does.
        command: program and arguments, as a container would run them.
        environment: variables of the container, without what this machine adds.
        mounts: mount path → host path, longest first.
        scratch: mount paths of ``emptyDir`` volumes, which get a directory of the pod's own.
        grace_s: seconds from the request to stop until the process is killed.
        termination_log: path in the container where the last error is written.
    """

    digest: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    mounts: tuple[tuple[str, str], ...]
    scratch: tuple[str, ...]
    startup: Probe | None
    readiness: Probe | None
    liveness: Probe | None
    grace_s: float
    termination_log: str

    def argv(self, port: int, home: Path, log: Path, device: Device = "auto") -> list[str]:
        """Build the command of a process that listens on ``port``.

        Args:
            port: free TCP port of the loopback.
            home: directory of the pod, for its scratch volumes.
            log: file for the process's last error.
            device: the user's ``--device``; ``auto`` leaves it to the manifest, except that a model made for
                a GPU runs on the CPU where there is none.
        """
        paths = self._paths(home, log)
        argv = [_rewrite(argument, paths) for argument in self.command]
        if "--cache-dir" in argv:  # one user's machine: its namespaces share their downloads
            argv = _with_flag(argv, "--cache-dir", _rewrite(CACHE_DIR, paths))
        if "--device" in argv:
            asked = argv[argv.index("--device") + 1]
            argv = _with_flag(argv, "--device", device if device != "auto" or asked == "cuda" else asked)
        return _with_flag(_with_flag(argv, "--host", LOOPBACK), "--port", str(port))

    def variables(self, home: Path, log: Path) -> dict[str, str]:
        """Return the environment, with the paths of this machine."""
        paths = self._paths(home, log)
        return {name: _rewrite(value, paths) for name, value in self.environment.items()}

    def scratch_folders(self, home: Path) -> list[Path]:
        """List the folders below ``home`` that stand for ``emptyDir`` volumes."""
        return [home / path.strip("/").replace("/", "-") for path in self.scratch]

    def _paths(self, home: Path, log: Path) -> list[tuple[str, str]]:
        scratch = zip(self.scratch, map(str, self.scratch_folders(home)), strict=True)
        own = [*self.mounts, *scratch, (self.termination_log, str(log))]
        return sorted(own, key=lambda pair: -len(pair[0]))


def read(deployment: Mapping[str, Any]) -> Template:
    """Read the pod template of a Deployment.

    Raises:
        NotLocal: a volume has no counterpart on this machine.
    """
    template = deployment["spec"]["template"]
    pod = template["spec"]
    container = pod["containers"][0]
    mounts, scratch = _volumes(pod, container)
    return Template(
        digest=hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10],
        command=tuple(
            map(_unescaped, (*(container.get("command") or DEFAULT_COMMAND), *container.get("args", ())))
        ),
        environment=_environment(container, deployment["metadata"]),
        mounts=mounts,
        scratch=scratch,
        startup=_probe(container, "startupProbe"),
        readiness=_probe(container, "readinessProbe"),
        liveness=_probe(container, "livenessProbe"),
        grace_s=float(pod.get("terminationGracePeriodSeconds", 30)),
        termination_log=container.get("terminationMessagePath", "/dev/termination-log"),
    )


def _volumes(
    pod: Mapping[str, Any], container: Mapping[str, Any]
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
    mounts, scratch = [], []
    for mount in container.get("volumeMounts", ()):
        volume = volumes[mount["name"]]
        if "hostPath" in volume:
            mounts.append((mount["mountPath"], volume["hostPath"]["path"]))
        elif "emptyDir" in volume:
            scratch.append(mount["mountPath"])
        else:
            kind = next((key for key in volume if key != "name"), "unknown")
            raise NotLocal(
                f"volume {mount['name']!r} is a {kind}, which exists only on a cluster. "
                "For `wisp up`, use a model uri of file://, hf:// or s3://."
            )
    return tuple(mounts), tuple(scratch)


def _environment(container: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, str]:
    """Literal values and the pod's own fields; secrets come from the environment of ``wisp up``."""
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata.get("namespace", "default"),
        "status.podIP": LOOPBACK,
        "status.hostIP": LOOPBACK,
        "spec.nodeName": "localhost",
    }
    variables = {}
    for variable in container.get("env", ()):
        source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if "value" in variable:
            variables[variable["name"]] = _unescaped(variable["value"])
        elif source in fields:
            variables[variable["name"]] = fields[source]
    return variables


def _unescaped(text: str) -> str:
    """``text`` as a kubelet passes it on: ``$$`` is one ``$``."""
    return text.replace("$$", "$")


def _probe(container: Mapping[str, Any], name: str) -> Probe | None:
    probe = container.get(name)
    if probe is None or "httpGet" not in probe:
        return None
    return Probe(
        path=probe["httpGet"].get("path", "/"),
        period_s=float(probe.get("periodSeconds", 10)),
        timeout_s=float(probe.get("timeoutSeconds", 1)),
        failures=int(probe.get("failureThreshold", 3)),
    )


def _rewrite(text: str, paths: Sequence[tuple[str, str]]) -> str:
    """``text`` with a leading container path (bare, or after ``file://`` or ``--flag=``) made a host path."""
    head, separator, path = "", "", text
    for mark in ("file://", "="):
        if mark in text:
            head, separator, path = text.partition(mark)
            break
    for inside, outside in paths:
        if path == inside or path.startswith(inside.rstrip("/") + "/"):
            return head + separator + outside.rstrip("/") + path[len(inside.rstrip("/")) :]
    return text


def _with_flag(argv: Sequence[str], flag: str, value: str) -> list[str]:
    """``argv`` in which ``flag`` has ``value``, replaced where it stood or appended."""
    kept: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        if argument == flag:
            next(arguments, None)
        elif not argument.startswith(f"{flag}="):
            kept.append(argument)
    return [*kept, flag, value]
