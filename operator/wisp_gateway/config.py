"""Settings of the gateway: one frozen value, its defaults, its checks.

The command line (:mod:`.main`) fills it from flags and ``WISP_GATEWAY_*``; no other module reads the
environment.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from wisp_gateway.errors import StartError

MIB = 1024 * 1024
ANY_ORIGIN = "*"
ORIGIN = re.compile(r"https?://[A-Za-z0-9.:\[\]-]{1,255}")
"""An origin as a browser sends it: scheme, host and port, no path."""


@dataclass(frozen=True)
class Config:
    """Settings of one gateway; the flags of ``wisp-gateway`` have the same names.

    Args:
        directory: JSON file of models, or None to watch a cluster.
        namespaces: namespaces to watch on a cluster; none means all.
        name: key of this gateway's demand at the operator, so unique; empty: ``gateway`` beside a file, on
            a cluster the host's name, which is the pod's.
        allow_origin: origins of web pages that may call the gateway from a browser; ``*``: every one.
        otlp_endpoint: base URL of a collector of traces (OTLP over HTTP); None: no traces.
        metrics_port: port that serves ``/metrics`` without a key; None: only ``port``, with one.

    Raises:
        StartError: a value is invalid.
    """

    directory: Path | None
    namespaces: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    metrics_port: int | None = None
    demand_url: str | None = None
    name: str = ""
    api_keys: Path | None = None
    limits_state: Path | None = None
    pod_token_keys: Path | None = None
    allow_origin: tuple[str, ...] = ()
    max_body_bytes: int = 4 * MIB
    max_held_bytes: int = 128 * MIB
    max_header_bytes: int = 16 * 1024
    max_answer_bytes: int = 64 * MIB
    keep_alive_s: float = 75.0
    max_connections: int = 8192
    max_connections_per_address: int = 2048
    header_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 1800.0
    shutdown_delay_s: float = 0.0
    drain_timeout_s: float = 30.0
    log_level: str = "info"
    log_format: str = "text"
    otlp_endpoint: str | None = None

    def __post_init__(self) -> None:
        """Fill in the name; refuse a demand URL that is not plain HTTP."""
        if not self.name:
            object.__setattr__(self, "name", "gateway" if self.directory else socket.gethostname())
        if self.metrics_port is not None and self.metrics_port == self.port:
            raise StartError(f"--metrics-port {self.port} is --port too. Choose another.")
        for origin in self.allow_origin:
            if origin != ANY_ORIGIN and not ORIGIN.fullmatch(origin):
                raise StartError(
                    f"--allow-origin {origin!r} is no origin. Give scheme and host, such as "
                    "https://chat.example.com, without a path; or * for every one."
                )
        if self.demand_url is None:
            return
        url = urlsplit(self.demand_url)
        if url.scheme != "http" or not url.hostname:
            raise StartError(f"--demand-url {self.demand_url!r} is not a plain http:// URL.")

    @property
    def base_url(self) -> str:
        """URL of the gateway for a client on this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@dataclass(frozen=True)
class ClusterEnvironment:
    """Environment variables that locate a cluster's API server.

    Args:
        kubeconfig: first file that ``KUBECONFIG`` names, or None.
        home_kubeconfig: kubectl's default file.
        service_host, service_port: address that Kubernetes gives every pod; empty elsewhere.
    """

    kubeconfig: Path | None
    home_kubeconfig: Path
    service_host: str
    service_port: str


def cluster_environment() -> ClusterEnvironment:
    """Read the environment."""
    named = os.environ.get("KUBECONFIG", "").partition(os.pathsep)[0]
    return ClusterEnvironment(
        kubeconfig=Path(named) if named else None,
        home_kubeconfig=Path.home() / ".kube" / "config",
        service_host=os.environ.get("KUBERNETES_SERVICE_HOST", ""),
        service_port=os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
