"""Settings of the builders that are the installation's: the image, the node's directories, the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Settings of an installation, the same for every model.

    Attributes:
        image: image of the runtime, with its tag or digest.
        pull_policy: pull policy of that image.
        node_cache_dir: directory of a node that keeps downloads for ``cache.type: NodeLocal``; it must be
            writable for ``user_id``.
        hub_endpoint: base URL of a mirror of huggingface.co; empty for the hub itself.
        user_id: user and group that the pods run as; never 0.
        cpu_request, memory_request, ephemeral_storage_request: resources that a pod requests besides the GPU,
            unless its model says otherwise.
        claim_size, claim_access_mode, claim_storage_class: properties of the claims for ``cache.type: PVC``;
            an empty class is the cluster's default.
        log_format: form of the log's lines of the pods.
        otlp_endpoint: base URL of the collector that gets their traces; empty: no traces.
        endpoint_grace_s: seconds a pod keeps accepting after its deletion, until no proxy sends more.
    """

    image: str = "ghcr.io/wisp-dev/wisp-runtime:0.1.0"
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    node_cache_dir: str = "/var/cache/wisp"
    hub_endpoint: str = ""
    user_id: int = 65532
    cpu_request: str = "1"
    memory_request: str = "4Gi"
    ephemeral_storage_request: str = "256Mi"
    claim_size: str = "100Gi"
    claim_access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = "ReadWriteOnce"
    claim_storage_class: str = ""
    log_format: str = "text"
    otlp_endpoint: str = ""
    endpoint_grace_s: int = 5
