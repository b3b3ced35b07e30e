"""The kinds of objects that the operator watches on a cluster, one row each.

A builder in ``desired`` and a row here make a new kind of child; what the operator may do with it is in the
chart's ``_rights.tpl``.
"""

from __future__ import annotations

from dataclasses import dataclass

from wisp_operator.api import API_VERSION, KIND, PLURAL


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object.

    Attributes:
        name: kind in manifests.
        version: ``GROUP/VERSION``, or ``v1``.
        plural: name in paths.
        is_optional: true if its CRD may be absent; discovered at start.
        is_pruned: true if its objects are deleted once they are no longer desired. A claim stays, since its
            content was paid for; the others are desired for as long as the model exists.
    """

    name: str
    version: str
    plural: str
    is_optional: bool = False
    is_pruned: bool = False

    @property
    def selector(self) -> tuple[str, str, str]:
        """Group, version and plural; the group of ``v1`` is empty."""
        group, _, version = self.version.rpartition("/")
        return group, version, self.plural

    @property
    def root(self) -> str:
        """Path under which the API server serves its version."""
        return f"/apis/{self.version}" if "/" in self.version else f"/api/{self.version}"


_TABLE = (
    Kind(KIND, API_VERSION, PLURAL),
    Kind("Deployment", "apps/v1", "deployments"),
    Kind("Service", "v1", "services"),
    Kind("Pod", "v1", "pods"),
    Kind("Node", "v1", "nodes"),
    Kind("Job", "batch/v1", "jobs", is_pruned=True),
    Kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims"),
    Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
    Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets", is_pruned=True),
    Kind("PodMonitor", "monitoring.coreos.com/v1", "podmonitors", is_optional=True, is_pruned=True),
    Kind(
        "InferencePool", "inference.networking.k8s.io/v1", "inferencepools", is_optional=True, is_pruned=True
    ),
)
KINDS = {kind.name: kind for kind in _TABLE}
