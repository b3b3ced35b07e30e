"""Limits of an installation on what an InferenceModel may ask for, beyond the rules of the API.

Pure. Whoever may create an InferenceModel is not thereby trusted with the nodes' directories, with code in a
pod or with any Secret of the namespace; the administrator opens what is closed here (docs/security.md).
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from wisp_operator.api import InferenceModel

MAX_NAMED = 4
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
HUB = ("HF_HUB_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT")
BUCKET = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SKIP_SIGNATURE")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM")
ENVIRONMENT = (*PROXIES, *HUB, *BUCKET, *THREADS, "TZ")
"""Variables that change neither a pod's code nor the place where it sends a Secret."""


GRANT = "have other controllers give the pods rights, networks or containers"
POD_LABELS = ("team", "owner", "environment", "cost-center")
POD_ANNOTATIONS = (
    *("prometheus.io/*", "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"),
)
"""Metadata by which no controller or webhook gives a pod rights, networks, containers or others' requests."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One installation's limits.

    Attributes:
        file_directories: directories of nodes below which ``file://`` models may lie; ``/`` for any.
        allows_oci: whether ``oci://`` models may be run.
        environment: names that ``spec.runtime.env`` may set; one that ends in ``*`` is a prefix.
        allows_env_secrets: whether ``spec.runtime.env`` may take values from Secrets.
        pod_labels, pod_annotations: keys that ``spec.podTemplate`` may set; ``*`` as in ``environment``.
        priority_classes: PriorityClasses that models may name; ``*`` likewise.
    """

    file_directories: tuple[str, ...] = ()
    allows_oci: bool = True
    environment: tuple[str, ...] = ENVIRONMENT
    allows_env_secrets: bool = False
    pod_labels: tuple[str, ...] = POD_LABELS
    pod_annotations: tuple[str, ...] = POD_ANNOTATIONS
    priority_classes: tuple[str, ...] = ()

    def refusal(self, model: InferenceModel) -> str:
        """Return every limit that ``model`` exceeds, with the remedy; empty if it exceeds none."""
        checks = (
            *(self._file_refusal(model), self._oci_refusal(model)),
            *(*self._env_refusals(model), *self._metadata_refusals(model), self._priority_refusal(model)),
        )
        return " ".join(sentence for sentence in checks if sentence)

    def _file_refusal(self, model: InferenceModel) -> str:
        if model.spec.model.scheme != "file":
            return ""
        path = posixpath.normpath("/" + model.spec.model.location.lstrip("/"))
        if any(_lies_below(path, directory) for directory in self.file_directories):
            return ""
        listed = ", ".join(self.file_directories)
        where = f"below {listed} of a node" if listed else "nowhere in this cluster"
        return (
            f"spec.model.uri: file:// models mount a directory of the node, and may lie {where}: use hf://, "
            "s3://, pvc:// or oci://, or have the directory added to policy.fileDirectories of Wisp's chart."
        )

    def _oci_refusal(self, model: InferenceModel) -> str:
        if model.spec.model.scheme != "oci" or self.allows_oci:
            return ""
        return (
            "spec.model.uri: this cluster runs no oci:// models: use hf://, s3:// or pvc://, or have "
            "policy.ociModels of Wisp's chart set."
        )

    def _env_refusals(self, model: InferenceModel) -> tuple[str, str]:
        variables = model.spec.runtime.env
        refused = [variable.name for variable in variables if not _matches(variable.name, self.environment)]
        secret = [variable.name for variable in variables if variable.secret_ref is not None]
        by_name = by_secret = ""
        if refused:
            by_name = (
                f"spec.runtime.env: {_named(refused)} may change a pod's code, or where it sends a Secret: "
                "remove it, or have it added to policy.env of Wisp's chart."
            )
        if secret and not self.allows_env_secrets:
            by_secret = (
                f"spec.runtime.env: {_named(secret)} would take any key of any Secret of the namespace: give "
                "a value; tokens of hubs and buckets go through spec.model.secretRef; or have "
                "policy.envSecretRefs of Wisp's chart set."
            )
        return by_name, by_secret

    def _metadata_refusals(self, model: InferenceModel) -> list[str]:
        template = model.spec.pod_template
        rows = (
            ("labels", template.labels, self.pod_labels, "podLabels", "make the pods part of other Services"),
            *(("annotations", template.annotations, self.pod_annotations, "podAnnotations", GRANT),),
        )
        sentences = []
        for field, given, allowed, value, harm in rows:
            refused = sorted(key for key in given if not _matches(key, allowed))
            if refused:
                sentences.append(
                    f"spec.podTemplate.{field}: {_named(refused)} may {harm}: remove it, or have it added to "
                    f"policy.{value} of Wisp's chart."
                )
        return sentences

    def _priority_refusal(self, model: InferenceModel) -> str:
        name = model.spec.pod_template.priority_class_name
        if name is None or _matches(name, self.priority_classes):
            return ""
        return (
            f"spec.podTemplate.priorityClassName: {name} may end pods of others to make room: remove it, or "
            "have it added to policy.priorityClasses of Wisp's chart."
        )


def _named(names: Sequence[str]) -> str:
    rest = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + rest


def _lies_below(path: str, directory: str) -> bool:
    directory = posixpath.normpath(directory)
    return directory == "/" or path == directory or path.startswith(f"{directory}/")


def _matches(name: str, allowed: Sequence[str]) -> bool:
    return any(
        name.startswith(entry[:-1]) if entry.endswith("*") else name == entry for entry in allowed if entry
    )
