"""The command line of a runtime pod, as ``docs/contracts.md`` gives it."""

from __future__ import annotations

from wisp_operator.api import InferenceModel
from wisp_operator.api.types import Scheduling
from wisp_operator.desired.labels import RUNTIME_PORT
from wisp_operator.desired.pod.volumes import cache_dir, model_path

COMMAND = ("wisp-runtime",)
TERMINATION_LOG = "/dev/termination-log"


def arguments(model: InferenceModel) -> list[str]:
    """Build the command line; what the API leaves open stays with the runtime's defaults."""
    source, runtime = model.spec.model, model.spec.runtime
    argv = ["serve", model_path(model), "--served-name", model.served_name]
    if model.served_name != model.name:
        argv += ["--alias", model.name]  # by which the gateway asks, whatever the served name is or was
    if source.revision:
        argv += ["--revision", source.revision]
    argv += ["--host", "0.0.0.0", "--port", str(RUNTIME_PORT)]
    argv += ["--device", "cuda" if model.spec.gpu.count else "cpu"]
    argv += ["--max-context", str(runtime.max_context), "--max-concurrent", str(runtime.max_concurrent)]
    argv += ["--quantization", runtime.quantization, "--kv-cache-dtype", runtime.kv_cache_dtype]
    if runtime.head_quantization != "bf16":
        argv += ["--head-quantization", runtime.head_quantization]
    if runtime.kv_cache_bf16_layers:
        argv += ["--kv-cache-bf16-layers", str(runtime.kv_cache_bf16_layers)]
    argv += ["--decode-path", runtime.decode_path]
    argv += ["--deterministic"] if runtime.deterministic else []
    argv += ["--generation-config", runtime.generation_config]
    if runtime.tool_parser != "auto":
        argv += ["--tool-parser", runtime.tool_parser]
    if runtime.reasoning_parser != "auto":
        argv += ["--reasoning-parser", runtime.reasoning_parser]
    argv += ["--prefix-cache" if runtime.prefix_cache else "--no-prefix-cache"]
    argv += _scheduling(model.spec.scheduling)
    argv += ["--drain-timeout-s", f"{model.spec.rollout.drain_timeout.seconds:.3f}"]
    return [*argv, "--cache-dir", cache_dir(model), "--termination-log", TERMINATION_LOG]


def _scheduling(scheduling: Scheduling) -> list[str]:
    settings = {
        "--target-first-token": scheduling.target_first_token,
        "--target-per-token": scheduling.target_per_token,
        "--max-waiting": scheduling.max_waiting,
        "--max-queue-wait": scheduling.max_queue_wait,
    }
    return [word for flag, value in settings.items() if value is not None for word in (flag, str(value))]
