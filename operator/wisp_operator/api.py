"""The InferenceModel API, ``wisp.dev/v1alpha1``: the twin of ``crds/inferencemodels.yaml`` in Python.

Field for field the same names, types, defaults and limits (``tests/contract/test_crd_api.py``). What
each field is for is said once, in the CRD's descriptions (``docs/inferencemodel.md``). Parsing is
strict and reports every problem at once; rules that span fields are in :mod:`.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from wisp_operator.errors import InvalidModel, Problem
from wisp_operator.limits import Count, EnvName, GpuProduct, LabelValue, ObjectName, SecretKeyName
from wisp_operator.quantities import Duration, Quantity
from wisp_operator.reading import Items, Range, Text, nearest, read_object, show, unknown
from wisp_operator.rules import broken

GROUP = "wisp.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceModel"
PLURAL = "inferencemodels"

DEFAULT_HEARTBEAT = Duration("10s")


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A Secret of the model's namespace."""

    name: ObjectName


@dataclass(frozen=True, slots=True)
class SecretKeyRef:
    """One key of a Secret of the model's namespace."""

    name: ObjectName
    key: SecretKeyName


@dataclass(frozen=True, slots=True)
class ModelSource:
    """``spec.model``: which weights, from where, under which name."""

    uri: Annotated[str, Text(512)]
    revision: (
        Annotated[str, Text(128, r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", "a branch, tag or commit")] | None
    ) = None
    secret_ref: SecretRef | None = None
    served_name: (
        Annotated[str, Text(128, r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", "letters, digits and . _ / : -")] | None
    ) = None

    @property
    def scheme(self) -> str:
        """The part of the URI before ``://``: hf, s3, pvc, oci or file."""
        return self.uri.partition("://")[0]

    @property
    def location(self) -> str:
        """The part of the URI after ``://``."""
        return self.uri.partition("://")[2]


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One environment variable of the pod: a value, or a key of a Secret."""

    name: EnvName
    value: Annotated[str, Text(4096, shortest=0)] | None = None
    secret_ref: SecretKeyRef | None = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """``spec.runtime``: how the engine runs the model."""

    max_context: Annotated[int, Range(1, 16_777_216)] | Literal["auto"] = "auto"
    max_concurrent: Annotated[int, Range(1, 1024)] = 32
    quantization: Literal["auto", "bf16", "fp8", "int8", "int4", "nvfp4"] = "auto"
    kv_cache_dtype: Literal["auto", "bf16", "fp8"] = "auto"
    decode_path: Literal["auto", "general"] = "auto"
    deterministic: bool = False
    prefix_cache: bool = True
    speculative: Literal["Off"] = "Off"
    env: Annotated[tuple[EnvVar, ...], Items(64, unique="name")] = ()


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint of a node that the pods accept, as in a Kubernetes pod."""

    key: Annotated[str, Text(317)] | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Range(0, 604_800)] | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """``spec.gpu``: what one pod runs on; ``count`` 0 means the CPU."""

    count: Annotated[int, Range(0, 8)] = 1
    product: Annotated[tuple[GpuProduct, ...], Items(16, least=1)] = ()
    memory: Quantity | None = None
    node_selector: Annotated[Mapping[str, LabelValue], Items(32)] = field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], Items(16)] = ()
    resource_name: Annotated[
        str, Text(128, r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", "an extended resource, e.g. nvidia.com/gpu")
    ] = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Scaling:
    """``spec.scaling``: how many pods, decided by the requests in flight."""

    min: Count = 0
    max: Annotated[int, Range(1, 1000)] = 1
    target_concurrency: Annotated[int, Range(1, 10_000)] = 16
    idle_after: Duration = field(default=Duration("10m"))
    stable_window: Duration = field(default=Duration("60s"))
    panic_window: Duration = field(default=Duration("6s"))


@dataclass(frozen=True, slots=True)
class ColdStart:
    """``spec.coldStart``: what a request meets while no pod is ready."""

    mode: Literal["Hold", "Reject"] = "Hold"
    max_wait: Duration = field(default=Duration("5m"))
    heartbeat: Duration | None = None
    queue_limit: Annotated[int, Range(1, 100_000)] = 128

    @property
    def heartbeat_s(self) -> float:
        """Seconds between the comments that a held stream gets."""
        return (self.heartbeat or DEFAULT_HEARTBEAT).seconds


@dataclass(frozen=True, slots=True)
class Cache:
    """``spec.cache``: where downloaded weights are kept between pods."""

    type: Literal["NodeLocal", "PVC", "Image", "None"] = "NodeLocal"
    prefetch: bool = False


@dataclass(frozen=True, slots=True)
class Routing:
    """``spec.routing``: how the gateway picks a pod."""

    policy: Literal["PrefixAware", "LeastLoad"] = "PrefixAware"


@dataclass(frozen=True, slots=True)
class Rollout:
    """``spec.rollout``: how pods start, stop and are replaced."""

    max_surge: Annotated[int, Range(0, 100)] = 1
    max_unavailable: Annotated[int, Range(0, 100)] = 0
    drain_timeout: Duration = field(default=Duration("60s"))
    startup_deadline: Duration = field(default=Duration("10m"))


@dataclass(frozen=True, slots=True)
class Access:
    """``spec.access``: who may call the model."""

    api_key_secret_ref: SecretRef | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """``spec``: what the user wants."""

    model: ModelSource
    runtime: Runtime = field(default_factory=Runtime)
    gpu: Gpu = field(default_factory=Gpu)
    replicas: Count | None = None
    scaling: Scaling | None = None
    cold_start: ColdStart = field(default_factory=ColdStart)
    cache: Cache = field(default_factory=Cache)
    routing: Routing = field(default_factory=Routing)
    rollout: Rollout = field(default_factory=Rollout)
    access: Access = field(default_factory=Access)
    suspend: bool = False

    @property
    def autoscaling(self) -> Scaling | None:
        """How the autoscaler decides; None if ``replicas`` was set by hand. Neither given means defaults."""
        if self.replicas is not None:
            return None
        return self.scaling or Scaling()


@dataclass(frozen=True, slots=True)
class InferenceModel:
    """One object: its identity and its spec. Status is built by :mod:`.status`, never read back."""

    name: str
    namespace: str
    spec: Spec
    uid: str = ""
    generation: int = 0

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def served_name(self) -> str:
        """The id in ``/v1/models``."""
        return self.spec.model.served_name or self.name


_METADATA = (
    *("name", "generateName", "namespace", "labels", "annotations", "ownerReferences", "finalizers"),
    *("uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)


def parse(document: Any, *, namespace: str = "default") -> InferenceModel:
    """Read one InferenceModel from plain data, strictly.

    Args:
        document: the object as YAML or JSON gave it.
        namespace: used where ``metadata.namespace`` is absent.

    Raises:
        InvalidModel: with every problem: unknown fields, wrong types and values, broken rules.
    """
    problems = _envelope_problems(document)
    if not isinstance(document, Mapping) or any(
        problem.path in ("apiVersion", "kind") for problem in problems
    ):
        raise InvalidModel(problems)
    spec = read_object(Spec, document.get("spec") or {}, "spec", problems)
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    model = InferenceModel(
        name=str(metadata.get("name", "")),
        namespace=str(metadata.get("namespace") or namespace),
        spec=spec,
        uid=str(metadata.get("uid") or ""),
        generation=generation if isinstance(generation := metadata.get("generation"), int) else 0,
    )
    problems += broken(model, unreadable=[problem.path for problem in problems])
    if problems:
        raise InvalidModel(problems)
    return model


def _envelope_problems(document: Any) -> list[Problem]:
    """Check everything around ``spec``."""
    if not isinstance(document, Mapping):
        return [
            Problem(
                "", f"the document is not a map of fields; an {KIND} starts with apiVersion: {API_VERSION}"
            )
        ]
    known = ("apiVersion", "kind", "metadata", "spec", "status")
    problems = [unknown(key, "", known) for key in document if key not in known]
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        given = document.get(key)
        if given is None:
            problems.append(Problem(key, f"is required; write {wanted}"))
        elif given != wanted:
            meant = (
                f"; did you mean {wanted}?"
                if nearest(show(given), [wanted])
                else f"; only {wanted} is read here"
            )
            problems.append(Problem(key, f"{show(given)} is not {wanted}{meant}"))
    return problems + _metadata_problems(document.get("metadata"))


def _metadata_problems(metadata: Any) -> list[Problem]:
    if not isinstance(metadata, Mapping):
        return [Problem("metadata.name", "is required")]
    problems = [unknown(key, "metadata", _METADATA) for key in metadata if key not in _METADATA]
    problems += [
        Problem(f"metadata.{key}", f"{show(metadata[key])} is not a text (put it in quotes)")
        for key in ("name", "namespace")
        if metadata.get(key) is not None and not isinstance(metadata[key], str)
    ]
    if metadata.get("name") is None:
        problems.append(Problem("metadata.name", "is required"))
    return problems
