"""Checks of ``wisp doctor``, one function each: a finding, and advice on it.

Every query of the outside (driver, cluster, disk) is bounded in time, and none changes anything.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from wisp_operator.cli.gateway_client import DEFAULT_URL, GatewayClient
from wisp_operator.errors import WispError
from wisp_operator.local import config
from wisp_operator.local.machine import hardware, ports
from wisp_plan import distribution
from wisp_plan.units import GIB, MIB, format_size

Standing = Literal["ok", "note", "warn", "fail"]
OUTSIDE_TIMEOUT_S = 5.0
KERNELS_TIMEOUT_S = 20.0  # Python and CUDA's libraries, read from a disk for the first time
PORT = 8080
DRIVER_NEEDED = 580
EXTRAS = ("operator", "runtime", "cuda")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        name: subject of the check.
        standing: ok, note (good to know), warn (something will not work), fail (nothing will).
        found: finding, in a few words.
        advice: remedy; empty if none is needed.
    """

    name: str
    standing: Standing
    found: str
    advice: str = ""


def run_all() -> list[Check]:
    """Run every check, the slow ones side by side, in the order of :data:`CHECKS`."""
    with ThreadPoolExecutor(len(CHECKS)) as pool:
        return [check for checks in pool.map(lambda run: list(run()), CHECKS) for check in checks]


def _wisp() -> Iterator[Check]:
    where = Path(__file__).resolve().parents[1]
    yield Check("wisp", "ok", f"{distribution.version()} in {where}")
    version = platform.python_version()
    yield Check("python", "ok", f"{version} ({sys.executable})")
    yield Check("system", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")


def _extras() -> Iterator[Check]:
    """Check our optional dependencies, by the extra that brings them."""
    has_gpu = bool(hardware.cards())
    for extra in EXTRAS:
        names = [_name(line) for line in metadata.requires(distribution.NAME) or () if _belongs(line, extra)]
        missing = [name for name in names if not _is_installed(name)]
        advice = distribution.install_command(extra)
        if not missing:
            yield Check(f"extra {extra}", "ok", "installed")
        elif extra == "cuda" and not has_gpu:
            yield Check("extra cuda", "note", "not installed; there is no GPU to use it")
        else:
            standing: Standing = "fail" if extra == "operator" else "warn"
            yield Check(f"extra {extra}", standing, f"lacks {', '.join(missing)}", advice)


def _programs() -> Iterator[Check]:
    for name, extra in (("wisp-gateway", "operator"), ("wisp-runtime", "runtime")):
        path = config.program(name)
        if path:
            yield Check(name, "ok", path)
        else:
            yield Check(
                name, "fail", "not found", f"{distribution.install_command(extra)}, or put it on PATH"
            )


def _gpus() -> Iterator[Check]:
    cards = hardware.cards()
    if not cards:
        has_driver = shutil.which("nvidia-smi") is not None
        advice = "nvidia-smi is installed but lists no GPU: run it to see why" if has_driver else ""
        yield Check(
            "gpu", "warn" if has_driver else "note", "none; models run on the CPU (small ones)", advice
        )
    for card in cards:
        memory = f"{card.name}, {format_size(card.free_bytes)} free of {format_size(card.total_bytes)}"
        is_old = int(re.match(r"\d*", card.driver)[0] or 0) < DRIVER_NEEDED  # type: ignore[index]
        advice = f"install driver {DRIVER_NEEDED} or newer (CUDA 13)" if is_old else ""
        yield Check("gpu", "warn" if is_old else "ok", f"{memory}, driver {card.driver}", advice)


def _kernels() -> Iterator[Check]:
    """Check that the first GPU's kernels are compiled, as the runtime itself finds them."""
    program = config.program("wisp-runtime")
    if program is None or not hardware.cards():
        return
    command = [program, "kernels", "list", "--device", "0", "--json"]
    environment = config.inherited_environment() | config.kernels_environment()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=KERNELS_TIMEOUT_S, env=environment, check=False
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix(
                "wisp-runtime: "
            )
            yield Check("kernels", "warn", reason, "models need the CPU, or do as it says")
        else:
            yield kernels_of(json.loads(done.stdout), environment["WISP_KERNELS"])
    except (OSError, subprocess.SubprocessError, ValueError):
        yield Check("kernels", "warn", "not known", f"run it to see why: {' '.join(command)}")


def kernels_of(rows: Sequence[Mapping[str, Any]], folder: str) -> Check:
    """Check the rows of ``wisp-runtime kernels list --json`` for one GPU: ops, compiled or not.

    Without those of ``common`` no model starts; without its own, a model decodes with a kernel an op.
    """
    wanted = [row for row in rows if row["source"] is not None]
    missing = [row["model"] for row in wanted if not row["isBuilt"]]
    arch = rows[0]["arch"]
    advice = f"wisp-runtime kernels build --arch {arch}" if missing else ""
    finding = f"{len(wanted) - len(missing)} of {len(wanted)} for {arch} compiled in {folder}"
    if "common" in missing:
        return Check("kernels", "warn", f"{finding}: no model starts on the GPU", advice)
    if missing:
        return Check(
            "kernels", "note", f"{finding}: no persistent decode kernel for {', '.join(missing)}", advice
        )
    return Check("kernels", "ok", finding)


def _memory() -> Iterator[Check]:
    free = hardware.free_memory_bytes()
    cores = len(os.sched_getaffinity(0))
    advice = "even a small model needs about 1 GiB: end something" if free < GIB else ""
    yield Check(
        "cpu and memory", "warn" if advice else "ok", f"{cores} cores, {format_size(free)} free", advice
    )


def _disk() -> Iterator[Check]:
    for name, folder, needed in (
        ("model cache", config.cache_dir(), 5 * GIB),
        ("logs", config.temporary_dir(), 50 * MIB),
    ):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        finding = f"{folder}, {format_size(free)} free"
        if not os.access(existing, os.W_OK):
            yield Check(
                name, "fail", f"{existing} is not writable", "choose another with WISP_CACHE_DIR or TMPDIR"
            )
        elif free < needed:
            yield Check(name, "warn", finding, f"free some space: {format_size(needed)} is little enough")
        else:
            yield Check(name, "ok", finding)


def _port() -> Iterator[Check]:
    try:
        ports.require_free("127.0.0.1", PORT)
        yield Check(f"port {PORT}", "ok", "free for wisp up")
    except ports.PortTaken as error:
        try:
            count = len(GatewayClient(DEFAULT_URL).state()["models"])
            models = f"{count} model{'' if count == 1 else 's'}"
            yield Check(f"port {PORT}", "ok", f"a Wisp gateway with {models} answers; see wisp get")
        except WispError:
            yield Check(f"port {PORT}", "warn", str(error).split(". ")[0], "wisp up FILE --port 8081")


def _token() -> Iterator[Check]:
    if config.hub_token():
        yield Check("Hugging Face token", "ok", "set")
    else:
        yield Check(
            "Hugging Face token", "note", "none; gated models need one", "export HF_TOKEN=… or: hf auth login"
        )


def _cluster() -> Iterator[Check]:
    """Check kubectl, helm, the cluster they reach, and Wisp on it."""
    for tool in ("kubectl", "helm"):
        path = shutil.which(tool)
        yield Check(tool, "ok" if path else "note", path or "not found; only needed for a cluster")
    if shutil.which("kubectl") is None:
        return
    version = _kubectl("version", "-o", "json")
    try:
        server = json.loads(version)["serverVersion"]["gitVersion"]
    except (ValueError, KeyError, TypeError):
        yield Check(
            "cluster", "note", "none reachable", "kubectl config current-context says which one is meant"
        )
        return
    yield Check("cluster", "ok", f"Kubernetes {server}")
    has_crd = bool(_kubectl("get", "crd", "inferencemodels.wisp.dev", "-o", "name"))
    advice = "" if has_crd else "helm install wisp charts/wisp -n wisp-system --create-namespace"
    yield Check(
        "wisp on the cluster",
        "ok" if has_crd else "note",
        "CRD installed" if has_crd else "not there",
        advice,
    )


def _kubectl(*arguments: str) -> str:
    """Return the output of kubectl, or nothing if it fails or takes too long."""
    command = ["kubectl", *arguments, f"--request-timeout={OUTSIDE_TIMEOUT_S:.0f}s"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=OUTSIDE_TIMEOUT_S + 2, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _belongs(requirement: str, extra: str) -> bool:
    return re.search(rf"extra\s*==\s*['\"]{extra}['\"]", requirement) is not None


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (
    _wisp,
    _extras,
    _programs,
    _gpus,
    _kernels,
    _memory,
    _disk,
    _port,
    _token,
    _cluster,
)
