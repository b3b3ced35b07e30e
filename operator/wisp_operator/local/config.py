"""Configuration of the control plane on one machine, from the environment and the installation.

The only module of the command line and the local cluster that reads the environment.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

OWN_PREFIX = "WISP_"
RUNTIME = "wisp-runtime"
API_KEY = "WISP_API_KEY"
"""Variable of the key that the command line sends."""


def cache_dir() -> Path:
    """Return the folder of downloads: ``WISP_CACHE_DIR``, else ``wisp`` in the user's folder of caches."""
    configured = os.environ.get("WISP_CACHE_DIR")
    if configured:
        return Path(configured).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "wisp"


def temporary_dir() -> Path:
    """Return the folder for the files of a ``wisp up`` without ``--state-dir`` while it runs."""
    return Path(os.environ.get("TMPDIR") or "/tmp")


def inherited_environment() -> dict[str, str]:
    """Return the environment of the gateway, and the one that pods' variables are added to.

    Settings of Wisp itself are left out: a pod on a cluster inherits nothing from the shell it was applied
    from, so ``WISP_MAX_CONTEXT`` there must not override the manifest here. The hub's token is added.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OWN_PREFIX)}
    token = hub_token()  # the pod's HOME is its own, so a token kept at ours must travel
    return inherited | {"HF_TOKEN": token} if token else inherited


def kernels_environment() -> dict[str, str]:
    """Return variables that name the compiled kernels here.

    A pod's HOME is its own, so it would not find them.
    """
    built = Path(os.environ.get("WISP_KERNELS") or cache_dir() / "kernels")
    return {"WISP_KERNELS": str(built.expanduser())}


def hub_token() -> str | None:
    """Return the Hugging Face token that downloads would use, from the environment or ``hf auth login``."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name):
            return os.environ[name]
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    try:
        return (home / "token").read_text().strip() or None
    except OSError:
        return None


def hub_endpoint() -> str:
    """Return the base URL of a mirror of huggingface.co (``HF_ENDPOINT``), or nothing."""
    return os.environ.get("HF_ENDPOINT", "")


def trace_endpoint() -> str | None:
    """Return the base URL of the collector of traces, or None.

    Gateway and pods have it from the same environment.
    """
    return os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None


def api_key() -> str:
    """Return the key that the command line sends to a gateway that wants one: ``WISP_API_KEY``."""
    return os.environ.get(API_KEY, "")


def program(name: str) -> str | None:
    """Find a program's path: as it stands if it is a path, else beside this Python, else on ``PATH``.

    ``WISP_RUNTIME_PROGRAM`` names another program to run instead of ``wisp-runtime``.
    """
    if name == RUNTIME:
        name = os.environ.get("WISP_RUNTIME_PROGRAM") or name
    beside = Path(sys.executable).parent / name  # an absolute name replaces the folder
    return str(beside) if beside.exists() else shutil.which(name)
