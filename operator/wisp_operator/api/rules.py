"""Rules of the API that one field's schema cannot express, each with the sentence a user reads.

The same rules stand in ``crds/inferencemodels.yaml`` as CEL, where the API server checks them at apply
time; ``tests/contract/test_crd_rules.py`` proves that both refuse the same manifests with the same words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from wisp_operator.api.pod_rules import POD_RULES
from wisp_operator.api.rule import Rule
from wisp_operator.api.types import InferenceModel, Spec
from wisp_operator.errors import Problem


def violations(model: InferenceModel, unreadable: Sequence[str] = ()) -> list[Problem]:
    """List the rules that ``model`` breaks, leaving out those that read a field which could not be read."""
    return [
        Problem(rule.path, rule.sentence, at=rule.reads[0])
        for rule in RULES
        if not any(_overlap(path, read) for path in unreadable for read in rule.reads)
        and not rule.holds(model)
    ]


def _overlap(unreadable: str, read: str) -> bool:
    """Whether one path is the other or lies within it."""
    shorter, longer = sorted((unreadable, read), key=len)
    return longer == shorter or (longer.startswith(shorter) and longer[len(shorter)] in ".[")


def _uri(scheme: str, pattern: str) -> Callable[[InferenceModel], bool]:
    """Build the rule that a URI of this scheme matches this pattern."""
    return lambda m: m.spec.model.scheme != scheme or bool(re.fullmatch(pattern, m.spec.model.uri))


def _on_gpu(spec: Spec) -> bool:
    return spec.gpu.count > 0


_URI = ("spec.model.uri",)

RULES: tuple[Rule, ...] = (
    Rule(
        "",
        "metadata.name is also the name of a Service: use at most 63 characters, lower-case letters, "
        "digits and '-', starting with a letter and not ending with '-'.",
        ("metadata.name",),
        lambda m: len(m.name) <= 63 and bool(re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", m.name)),
    ),
    Rule(
        "",
        "metadata.name must not be kubernetes, which is the Service of the API server itself: choose another "
        "name, and set spec.model.servedName if clients should see this one.",
        ("metadata.name",),
        lambda m: m.name != "kubernetes",
    ),
    Rule(
        "spec",
        "spec.replicas and spec.scaling exclude each other: to set the number by hand (kubectl scale), "
        "remove spec.scaling; to let the autoscaler decide, remove spec.replicas and set spec.scaling.min "
        "and max.",
        ("spec.replicas", "spec.scaling"),
        lambda m: m.spec.replicas is None or m.spec.scaling is None,
    ),
    Rule(
        "spec.scaling",
        "spec.scaling.min is larger than spec.scaling.max: lower min or raise max.",
        ("spec.scaling.min", "spec.scaling.max"),
        lambda m: m.spec.scaling is None or m.spec.scaling.min <= m.spec.scaling.max,
    ),
    Rule(
        "spec.scaling",
        "spec.scaling.panicWindow must be shorter than spec.scaling.stableWindow: it exists to notice a "
        "burst before the stable window does; a tenth of it is usual.",
        ("spec.scaling.stableWindow", "spec.scaling.panicWindow"),
        lambda m: (
            m.spec.scaling is None
            or m.spec.scaling.panic_window.seconds < m.spec.scaling.stable_window.seconds
        ),
    ),
    Rule(
        "spec.model",
        "spec.model.uri must start with hf://, s3://, pvc://, oci:// or file://, for example "
        "hf://Qwen/Qwen3-0.6B.",
        _URI,
        lambda m: bool(re.search(r"^(hf|s3|pvc|oci|file)://", m.spec.model.uri)),
    ),
    Rule(
        "spec.model",
        "spec.model.uri with hf:// names an organisation and a repository, for example "
        "hf://Qwen/Qwen3-0.6B; put a branch, tag or commit into spec.model.revision.",
        _URI,
        _uri("hf", r"^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"),
    ),
    Rule(
        "spec.model",
        "spec.model.uri with s3:// names a bucket and a prefix, for example s3://models/qwen3-0.6b.",
        _URI,
        _uri("s3", r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[^/ ][^ ]*$"),
    ),
    Rule(
        "spec.model",
        "spec.model.uri with pvc:// names a claim of the model's namespace and, if wanted, a directory in "
        "it, for example pvc://models/qwen3-0.6b; '..' is not allowed.",
        _URI,
        lambda m: (
            _uri("pvc", r"^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^ ]*)?$")(m) and _stays_inside(m, "pvc")
        ),
    ),
    Rule(
        "spec.model",
        "spec.model.uri with oci:// names an image and its tag or digest, for example "
        "oci://ghcr.io/acme/qwen3-0.6b:1.0.",
        _URI,
        _uri(
            "oci", r"^oci://[a-z0-9.:-]+(/[a-z0-9._-]+)+(:[A-Za-z0-9_][A-Za-z0-9._-]*|@sha256:[0-9a-f]{64})$"
        ),
    ),
    Rule(
        "spec.model",
        "spec.model.uri with file:// names an absolute directory on the node, for example "
        "file:///srv/models/qwen3-0.6b (three slashes, no spaces); '..' is not allowed.",
        _URI,
        lambda m: _uri("file", r"^file:///[^/ ][^ ]*$")(m) and _stays_inside(m, "file"),
    ),
    Rule(
        "spec.model",
        "spec.model.revision only means something with hf://: remove it, or use an hf:// URI.",
        (*_URI, "spec.model.revision"),
        lambda m: m.spec.model.revision is None or m.spec.model.scheme == "hf",
    ),
    Rule(
        "spec.model",
        "spec.model.secretRef is only read with hf:// (key HF_TOKEN) and s3:// (keys AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY): remove it; for a private oci:// image, add an image pull secret to "
        "the namespace's default service account.",
        (*_URI, "spec.model.secretRef"),
        lambda m: m.spec.model.secret_ref is None or m.spec.model.scheme in ("hf", "s3"),
    ),
    Rule(
        "spec",
        "spec.cache.type Image means that the node's image store keeps the weights, which only oci:// "
        "models have: use NodeLocal, PVC or None, or an oci:// URI.",
        (*_URI, "spec.cache.type"),
        lambda m: m.spec.cache.type != "Image" or m.spec.model.scheme == "oci",
    ),
    Rule(
        "spec.cache",
        "spec.cache.prefetch needs somewhere to keep what it fetches: set spec.cache.type to NodeLocal, "
        "PVC or Image, or prefetch to false.",
        ("spec.cache.type", "spec.cache.prefetch"),
        lambda m: not m.spec.cache.prefetch or m.spec.cache.type != "None",
    ),
    Rule(
        "spec",
        "spec.cache.prefetch has nothing to fetch for a pvc:// or file:// model, which is already in "
        "place: remove it.",
        (*_URI, "spec.cache.prefetch"),
        lambda m: not m.spec.cache.prefetch or m.spec.model.scheme not in ("pvc", "file"),
    ),
    Rule(
        "spec.coldStart",
        "spec.coldStart.heartbeat has no effect with mode Reject, which holds no request: remove it, or "
        "use mode Hold.",
        ("spec.coldStart.mode", "spec.coldStart.heartbeat"),
        lambda m: m.spec.cold_start.mode != "Reject" or m.spec.cold_start.heartbeat is None,
    ),
    Rule(
        "spec.coldStart",
        "spec.coldStart.heartbeat must be shorter than spec.coldStart.maxWait, or no held request would "
        "ever see one: lower heartbeat or raise maxWait.",
        ("spec.coldStart.heartbeat", "spec.coldStart.maxWait"),
        lambda m: (
            m.spec.cold_start.heartbeat is None
            or m.spec.cold_start.heartbeat.seconds < m.spec.cold_start.max_wait.seconds
        ),
    ),
    Rule(
        "spec.rollout",
        "spec.rollout.maxSurge and maxUnavailable cannot both be 0, or no pod could ever be replaced: set "
        "maxSurge to 1 if a spare GPU exists, else maxUnavailable to 1.",
        ("spec.rollout.maxSurge", "spec.rollout.maxUnavailable"),
        lambda m: m.spec.rollout.max_surge > 0 or m.spec.rollout.max_unavailable > 0,
    ),
    Rule(
        "spec.gpu",
        "spec.gpu.count above 1 needs tensor parallelism, which this version does not have: use 1, and a "
        "shorter spec.runtime.maxContext or a larger GPU if the model does not fit.",
        ("spec.gpu.count",),
        lambda m: m.spec.gpu.count <= 1,
    ),
    Rule(
        "spec.gpu",
        "spec.gpu.product and spec.gpu.memory choose a GPU, but spec.gpu.count 0 means the CPU: remove "
        "them, or set count to 1.",
        ("spec.gpu.count", "spec.gpu.product", "spec.gpu.memory"),
        lambda m: _on_gpu(m.spec) or (not m.spec.gpu.product and m.spec.gpu.memory is None),
    ),
    Rule(
        "spec.gpu",
        "spec.gpu.nodeSelector must not name nvidia.com/gpu.product: list the products in spec.gpu.product.",
        ("spec.gpu.nodeSelector",),
        lambda m: "nvidia.com/gpu.product" not in m.spec.gpu.node_selector,
    ),
    Rule(
        "spec.gpu",
        "spec.gpu.tolerations: operator Exists takes no value, and operator Equal needs a key.",
        ("spec.gpu.tolerations",),
        lambda m: all(
            t.value is None if t.operator == "Exists" else t.key is not None for t in m.spec.gpu.tolerations
        ),
    ),
    Rule(
        "spec.gpu",
        "spec.gpu.tolerations: tolerationSeconds only means something with effect NoExecute.",
        ("spec.gpu.tolerations",),
        lambda m: all(
            t.toleration_seconds is None or t.effect == "NoExecute" for t in m.spec.gpu.tolerations
        ),
    ),
    Rule(
        "spec",
        "spec.runtime.quantization must be auto or bf16 on the CPU (spec.gpu.count 0), which computes in "
        "float32: the other formats are held by GPUs. Set it to auto, or spec.gpu.count to 1.",
        ("spec.gpu.count", "spec.runtime.quantization"),
        lambda m: _on_gpu(m.spec) or m.spec.runtime.quantization in ("auto", "bf16"),
    ),
    Rule(
        "spec",
        "spec.runtime.headQuantization must be bf16 on the CPU (spec.gpu.count 0), which computes in "
        "float32: remove it, or set spec.gpu.count to 1.",
        ("spec.gpu.count", "spec.runtime.headQuantization"),
        lambda m: _on_gpu(m.spec) or m.spec.runtime.head_quantization == "bf16",
    ),
    Rule(
        "spec",
        "spec.runtime.kvCacheBf16Layers keeps layers out of a smaller format, and kvCacheDtype auto or bf16 "
        "is none: name one in kvCacheDtype, or remove kvCacheBf16Layers.",
        ("spec.runtime.kvCacheBf16Layers", "spec.runtime.kvCacheDtype"),
        lambda m: (
            not m.spec.runtime.kv_cache_bf16_layers or m.spec.runtime.kv_cache_dtype not in ("auto", "bf16")
        ),
    ),
    Rule(
        "spec",
        "spec.runtime.deterministic needs a GPU, and spec.gpu.count 0 means the CPU, whose matrix products "
        "depend on a step's size: remove it, or set count to 1.",
        ("spec.gpu.count", "spec.runtime.deterministic"),
        lambda m: _on_gpu(m.spec) or not m.spec.runtime.deterministic,
    ),
    Rule(
        "spec",
        "spec.runtime.deterministic takes the persistent decode kernel of a model that has one, and "
        "decodePath general turns it off: remove one of the two.",
        ("spec.runtime.deterministic", "spec.runtime.decodePath"),
        lambda m: not m.spec.runtime.deterministic or m.spec.runtime.decode_path != "general",
    ),
    Rule(
        "spec",
        "spec.runtime.deterministic takes at most 64 sequences in a step: lower spec.runtime.maxConcurrent "
        "to 64, or remove deterministic.",
        ("spec.runtime.deterministic", "spec.runtime.maxConcurrent"),
        lambda m: (
            not m.spec.runtime.deterministic
            or m.spec.runtime.max_concurrent == "auto"
            or m.spec.runtime.max_concurrent <= 64
        ),
    ),
    Rule(
        "spec.runtime",
        "spec.runtime.env must not set WISP_* variables, which are the runtime's own flags: set the fields "
        "of spec.runtime; flags that have none there stay at their defaults.",
        ("spec.runtime.env",),
        lambda m: all(not variable.name.startswith("WISP_") for variable in m.spec.runtime.env),
    ),
    Rule(
        "spec.runtime",
        "spec.runtime.env: give each variable either a value or a secretRef.",
        ("spec.runtime.env",),
        lambda m: all((v.value is None) != (v.secret_ref is None) for v in m.spec.runtime.env),
    ),
    *POD_RULES,
)


def _stays_inside(model: InferenceModel, scheme: str) -> bool:
    """Whether a path-like URI of this scheme has no ``..`` segment."""
    return model.spec.model.scheme != scheme or not re.search(r"/\.\.(/|$)", model.spec.model.uri)
