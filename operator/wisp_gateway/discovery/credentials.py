"""Credentials of the API server, from a kubeconfig or the pod's service account.

Tokens and the service account's CA are read from disk at each use, so that the kubelet's renewals count at
once. Kubeconfigs may hold a token or a client certificate; credential plugins (``exec``) are not run.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from wisp_gateway.config import ClusterEnvironment
from wisp_gateway.errors import StartError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Credentials:
    """URL, token and TLS settings of one API server.

    Args:
        url: base URL (``https://host:port``) without a trailing slash.
        token: function that returns the current bearer token; empty for none.
        tls: function that returns the current TLS settings, the same object until they change.
    """

    url: str
    token: Callable[[], str]
    tls: Callable[[], ssl.SSLContext]


def find(environment: ClusterEnvironment, service_account: Path = SERVICE_ACCOUNT) -> Credentials:
    """Find credentials: ``KUBECONFIG``, else the pod's service account, else ``~/.kube/config``.

    Raises:
        StartError: there are none, or they cannot be used.
    """
    if environment.kubeconfig is not None:
        return _of_kubeconfig(environment.kubeconfig)
    if environment.service_host and (service_account / "token").exists():
        return _of_service_account(environment, service_account)
    if environment.home_kubeconfig.exists():
        return _of_kubeconfig(environment.home_kubeconfig)
    raise StartError(
        "--directory kubernetes: no credentials; run in a pod with a service account, or set KUBECONFIG."
    )


def _of_service_account(environment: ClusterEnvironment, folder: Path) -> Credentials:
    host = environment.service_host
    bracketed = f"[{host}]" if ":" in host else host
    url = f"https://{bracketed}:{environment.service_port}"
    authority = _Authority(folder / "ca.crt")
    return Credentials(url, lambda: (folder / "token").read_text().strip(), authority.tls)


class _Authority:
    """TLS settings that trust one CA file, reloaded when it changes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = 0
        self._context: ssl.SSLContext | None = None

    def tls(self) -> ssl.SSLContext:
        changed = self._file.stat().st_mtime_ns
        if self._context is None or changed != self._seen:
            self._context, self._seen = ssl.create_default_context(cafile=str(self._file)), changed
        return self._context


def _of_kubeconfig(path: Path) -> Credentials:
    try:
        document = yaml.safe_load(path.read_text())
        context = _named(document, "contexts", "context", document["current-context"])
        cluster = _named(document, "clusters", "cluster", context["cluster"])
        user = _named(document, "users", "user", context["user"])
        server = str(cluster["server"]).rstrip("/")
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
        raise StartError(f"kubeconfig {path}: cannot be used: {error!r}") from error
    if "exec" in user or "auth-provider" in user:
        raise StartError(
            f"kubeconfig {path}: its user needs a program to be run (exec), which the gateway does not do; "
            "give it a token or a client certificate."
        )
    folder = path.parent
    try:
        context_of_file = _tls(cluster, user, folder)
    except (OSError, ValueError) as error:
        raise StartError(f"kubeconfig {path}: its certificates cannot be used: {error}") from error
    return Credentials(server, lambda: _token(user, folder), lambda: context_of_file)


def _named(document: dict[str, Any], many: str, one: str, name: str) -> dict[str, Any]:
    for item in document[many]:
        if item["name"] == name:
            section: dict[str, Any] = item.get(one) or {}
            return section
    raise KeyError(f"{many}: {name}")


def _token(user: dict[str, Any], folder: Path) -> str:
    if file := user.get("tokenFile"):
        return Path(folder, file).read_text().strip()
    return str(user.get("token") or "")


def _tls(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext:
    authority = _pem(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate, key = (_pem(user, name, folder) for name in ("client-certificate", "client-key"))
    if certificate and key:
        _load_pair(context, certificate + b"\n" + key)
    return context


def _pem(section: dict[str, Any], name: str, folder: Path) -> bytes:
    """Return a PEM text, inline in the kubeconfig or in a file beside it; empty if there is none."""
    if inline := section.get(f"{name}-data"):
        return base64.b64decode(inline, validate=True)
    return (folder / section[name]).read_bytes() if section.get(name) else b""


def _load_pair(context: ssl.SSLContext, pem: bytes) -> None:
    """Load certificate and key through a private temporary file: Python's ``ssl`` takes only files."""
    handle, name = tempfile.mkstemp()
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
        context.load_cert_chain(name)
    finally:
        os.unlink(name)
