"""Types of the InferenceModel API, ``wisp.dev/v1alpha1``: ``crds/inferencemodels.yaml`` as dataclasses.

Field for field the same names, types, defaults and limits (``tests/contract/test_crd_api.py``). The
CRD's descriptions (``docs/inferencemodel.md``) say what each field is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from wisp_operator.api.field_types import Count, EnvName, GpuProduct, LabelValue, ObjectName, SecretKeyName
from wisp_operator.api.pod_template import PodTemplate, Resources
from wisp_operator.api.quantities import Duration, Quantity
from wisp_operator.api.schema_parser import Items, Range, Text

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
    """``spec.model``: the weights, their source and their served name."""

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
    value: Annotated[str, Text(4096, min_length=0)] | None = None
    secret_ref: SecretKeyRef | None = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """``spec.runtime``: settings of the engine."""

    max_context: Annotated[int, Range(1, 16_777_216)] | Literal["auto"] = "auto"
    max_concurrent: Annotated[int, Range(1, 1024)] | Literal["auto"] = "auto"
    quantization: Literal["auto", "bf16", "fp8", "int8", "int4", "nvfp4"] = "auto"
    head_quantization: Literal["bf16", "fp8"] = "bf16"
    kv_cache_dtype: Literal["auto", "bf16", "fp8", "nvfp4", "turbo8", "turbo4", "turbo3"] = "auto"
    kv_cache_bf16_layers: Annotated[int, Range(0, 512)] = 0
    decode_path: Literal["auto", "general"] = "auto"
    deterministic: bool = False
    generation_config: Literal["auto", "none"] = "auto"
    tool_parser: Literal[
        "auto", "none", "harmony", "hermes", "llama3_json", "mistral", "pythonic", "qwen3_coder"
    ] = "auto"
    reasoning_parser: Literal[
        "auto", "none", "cohere", "gemma4", "harmony", "mistral", "seed_oss", "think"
    ] = "auto"
    prefix_cache: bool = True
    speculative: Literal["Off"] = "Off"
    env: Annotated[tuple[EnvVar, ...], Items(64, unique="name")] = ()


@dataclass(frozen=True, slots=True)
class Scheduling:
    """``spec.scheduling``: targets and bounds of the engine; the rest stays with the runtime."""

    target_first_token: Duration | None = None
    target_per_token: Duration | None = None
    max_waiting: Annotated[int, Range(1, 100_000)] | None = None
    max_queue_wait: Duration | None = None


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
    """``spec.gpu``: the GPU of one pod; ``count`` 0 means the CPU."""

    count: Annotated[int, Range(0, 8)] = 1
    product: Annotated[tuple[GpuProduct, ...], Items(16, min_items=1)] = ()
    memory: Quantity | None = None
    node_selector: Annotated[Mapping[str, LabelValue], Items(32)] = field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], Items(16)] = ()
    resource_name: Annotated[
        str, Text(128, r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", "an extended resource, e.g. nvidia.com/gpu")
    ] = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Scaling:
    """``spec.scaling``: bounds and windows of the autoscaler, which counts requests in flight."""

    min: Count = 0
    max: Annotated[int, Range(1, 1000)] = 1
    target_concurrency: Annotated[int, Range(1, 10_000)] = 16
    idle_after: Duration = field(default=Duration("10m"))
    stable_window: Duration = field(default=Duration("60s"))
    panic_window: Duration = field(default=Duration("6s"))


@dataclass(frozen=True, slots=True)
class ColdStart:
    """``spec.coldStart``: handling of requests while no pod is ready."""

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
    """``spec.cache``: storage of downloaded weights between pods."""

    type: Literal["NodeLocal", "PVC", "Image", "None"] = "NodeLocal"
    prefetch: bool = False


@dataclass(frozen=True, slots=True)
class Routing:
    """``spec.routing``: load-balancing policy of the gateway."""

    policy: Literal["PrefixAware", "LeastLoad"] = "PrefixAware"


@dataclass(frozen=True, slots=True)
class Rollout:
    """``spec.rollout``: limits of starting, stopping and replacing pods."""

    max_surge: Annotated[int, Range(0, 100)] = 1
    max_unavailable: Annotated[int, Range(0, 100)] = 0
    drain_timeout: Duration = field(default=Duration("60s"))
    startup_deadline: Duration = field(default=Duration("10m"))


@dataclass(frozen=True, slots=True)
class Access:
    """``spec.access``: API keys that callers need."""

    api_key_secret_ref: SecretRef | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """``spec``: the desired state."""

    model: ModelSource
    runtime: Runtime = field(default_factory=Runtime)
    scheduling: Scheduling = field(default_factory=Scheduling)
    gpu: Gpu = field(default_factory=Gpu)
    resources: Resources = field(default_factory=Resources)
    pod_template: PodTemplate = field(default_factory=PodTemplate)
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
        """Settings of the autoscaler; None if ``replicas`` was set by hand. Neither given means defaults."""
        if self.replicas is not None:
            return None
        return self.scaling or Scaling()


@dataclass(frozen=True, slots=True)
class InferenceModel:
    """One object: its identity and its spec. ``wisp_operator.core.status`` builds the status."""

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
