"""The operator's settings: one frozen value and its defaults.

The command line (:mod:`wisp_operator.main`) fills it from flags and ``WISP_OPERATOR_*``. The only module of
the operator on a cluster that reads the environment.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from wisp_operator.core.access.policy import Policy
from wisp_operator.desired.settings import BuildSettings
from wisp_operator.errors import WispError

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class BadSetting(WispError):
    """Settings of the operator contradict each other."""


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Settings of one replica of the operator; the flags of ``wisp_operator.main`` have the same names.

    Attributes:
        namespace: the operator's own: its Lease lives there, and its pods may reach the models'.
        watch_namespaces: namespaces whose models are served; none means all. With some, nothing is read of
            the rest of the cluster, its nodes included.
        identity: name of this replica, unique among replicas; the pod's name.
        advertise: ``host:port`` where other replicas reach this one's HTTP port.
        host, port: address to listen on for demand, probes and metrics.
        gateway_url: base URL of the gateway, for ``status.url``; empty if there is none.
        lease_name: name of the Lease that elects the leader.
        lease_s: seconds after which a silent leader is succeeded.
        renew_s: seconds between renewals; a leader that could not renew for ``lease_s - renew_s`` stops.
        workers: models reconciled at once.
        pod_token_keys: file of the keys, shared with the gateway, that tokens are derived from.
        marks_idle_pods: whether pods are annotated before a scale-down, which needs the right to patch them.
        policy: limits on what an InferenceModel may ask for.
        build: settings of the builders of cluster objects.

    Raises:
        BadSetting: values that contradict each other.
    """

    namespace: str = "default"
    watch_namespaces: tuple[str, ...] = ()
    identity: str = "operator"
    advertise: str = ""
    host: str = "0.0.0.0"
    port: int = 8081
    gateway_url: str = ""
    lease_name: str = "wisp-operator"
    lease_s: float = 6.0
    renew_s: float = 1.5
    workers: int = 8
    pod_token_keys: Path | None = None
    marks_idle_pods: bool = False
    policy: Policy = field(default_factory=Policy)
    build: BuildSettings = field(default_factory=BuildSettings)

    def __post_init__(self) -> None:
        """Refuse lease times with which no leader could stay one."""
        if self.lease_s < 2 * self.renew_s or self.lease_s < 1:
            raise BadSetting(
                f"--lease-s {self.lease_s:g} must be at least 1 and twice --renew-s {self.renew_s:g}: "
                "a leader needs the time to try again."
            )


def own_namespace() -> str:
    """The namespace this process runs in: its service account's, else ``default``."""
    try:
        return NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return "default"


def own_identity() -> str:
    """A name that no other replica has: the pod's, which is the host's name; with the pid outside a pod."""
    name = os.environ.get("POD_NAME") or socket.gethostname()
    return name if NAMESPACE_FILE.exists() else f"{name}-{os.getpid()}"


def own_address(port: int) -> str:
    """Build the address for other replicas: ``POD_IP``, else the loopback."""
    host = os.environ.get("POD_IP") or "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def trace_endpoint(config: OperatorConfig) -> str | None:
    """Base URL of the collector of traces, or None; the pods' own, or one that is set for all programs."""
    return config.build.otlp_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None
