"""Start of a model: resolve it, check that it fits, read it, and run a first token.

Each phase is reported as it begins, progresses and ends. Order on a GPU: from the first moment a thread
makes the context (C code, without Python's lock) while the model is resolved and CuPy is imported. Then
files' headers are read, which takes milliseconds, and memory is checked against the card's free memory; only
then are weights read. While threads read, the model's tables are made. All that, from the import of
CuPy on, is the phase "weights". The phase "kernels" follows before the first step: the KV cache, and on a
GPU one step of every size, so that nothing is loaded or allocated later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from wisp_plan.errors import RequestInvalid
from wisp_plan.fit.verdict import Fit, FitRequest, check
from wisp_plan.memory.cache import model_groups
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import GIB, format_size
from wisp_plan.weights.held import BF16
from wisp_runtime.config import STEP_SEQUENCES, DecodePath, ServeConfig
from wisp_runtime.engine.constrained.compiler import GrammarCompiler, compiler_of
from wisp_runtime.engine.execution.cpu_runner import CpuRunner
from wisp_runtime.engine.execution.pooling import pooling_kinds
from wisp_runtime.engine.execution.runner import Runner
from wisp_runtime.engine.execution.sampler import UNSOUND_LOGITS
from wisp_runtime.engine.loop import step
from wisp_runtime.engine.persistent.co_running import WHY_SUSPENDED, CoRunningCheck
from wisp_runtime.engine.persistent.strategy import DecodeStrategy, select_strategy, watch_co_running
from wisp_runtime.engine.phases import Report, phase
from wisp_runtime.engine.scheduling.context_work import context_work
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import Ready, SamplingParams, Submit
from wisp_runtime.errors import ConfigError, DoesNotFit, WeightsUnreadable
from wisp_runtime.layers.cache import KvScales, allocate
from wisp_runtime.layers.expert_load import ExpertLoad
from wisp_runtime.models.load import open_checkpoint, read_spec
from wisp_runtime.models.model import Model
from wisp_runtime.ops import registry
from wisp_runtime.ops.protocol.device import ContextPrefetch, Device, Memory
from wisp_runtime.sources.resolve import resolve

Progress = Callable[[int, int], None]
_MIXED_STEP_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that has given its first token."""

    scheduler: Scheduler
    runner: Runner
    ready: Ready
    co_running_check: CoRunningCheck | None = None
    compiler: GrammarCompiler | None = None
    experts: ExpertLoad | None = None

    def ready_while(self, is_suspended: bool) -> Ready:
        """Return what the server shows while the persistent kernel is suspended, or used again."""
        if not is_suspended:
            return replace(self.ready, load=self.scheduler.load)
        suspended = DecodeStrategy("general", WHY_SUSPENDED).to_dict()
        kernels = {"set": self.ready.kernels["set"]} | suspended
        return replace(self.ready, kernels=kernels, load=self.scheduler.load)


def start(config: ServeConfig, report: Report) -> Engine:
    """Do everything up to the first token.

    Args:
        config: settings of the process.
        report: called with each phase, as it begins, moves and ends.

    Raises:
        RuntimeFailure: the start failed; its kind is in :mod:`wisp_runtime.errors`.
    """
    context = registry.start_context(config.device)
    with phase("pull", report) as progress:
        watched = _watch_for_gpu(config.device, context, progress)
        path = resolve(config.model, config.revision, config.cache_dir, watched)
    spec = read_spec(path)
    with phase("weights", report) as progress:
        device = registry.open_device(config.device, threads=config.threads, context=context)
        if config.deterministic:
            device.ops.set_batch_invariant()
        memory = device.memory()
        device.require_model(spec, config.block_tokens)
        if spec.quantization is None:  # else the headers decide which layers are quantized
            require_fit(spec, config, memory)
        checkpoint = open_checkpoint(path, spec, rank=device.comm.rank, ranks=device.comm.size)
        fit = require_fit(checkpoint.spec, config, memory)
        device.require_kv(fit.kv)
        options = fit.ledger.options
        checkpoint = checkpoint.held(options.quantization, options.formats)
        model = checkpoint.load(device.ops, progress, comm=device.comm)
        progress.note = fit.ledger.weight_description + checkpoint.not_read
    limits = replace(limits_of(spec, config, fit), poolings=pooling_kinds(device.stream))
    with phase("kernels", report) as progress:
        scales: KvScales = {}
        if fit.kv.inner.has_layer_scale:
            scales, progress.note = _kv_scales(path, model, device, fit)
        runner, strategy = make_runner(model, device, fit, limits, config.decode_path, scales)
    with phase("firstToken", report):
        smoke_test(runner, limits)
        model.expert_load.restart()
    scheduler = make_scheduler(limits)
    ready = Ready(
        max_context=limits.max_context,
        max_concurrent=limits.max_running,
        vocab_size=spec.vocab,
        eos_token_ids=spec.eos_token_ids,
        ledger=fit.to_dict() | measured(memory, device),
        kernels={"set": kernel_set(device.ops.kernels, fit)} | strategy.to_dict(),
        device=device.ops.device,
        load=scheduler.load,
        hidden_size=spec.hidden,
        poolings=limits.poolings,
        has_experts=bool(model.expert_load.layers),
    )
    watch = watch_co_running(runner, strategy, device)
    return Engine(scheduler, runner, ready, watch, compiler_of(path, spec), model.expert_load)


def kernel_set(name: str, fit: Fit) -> str:
    """Return the name of a device's kernels with the weights' formats: ``hopper/common/int4, bf16``."""
    folder, slash, _ = name.rpartition("/")
    return f"{folder}/{fit.quantization}" if slash else name


def _watch_for_gpu(device: str, context: ContextPrefetch | None, progress: Progress) -> Progress:
    """Return ``progress``, which ends a long download when the requested GPU is missing."""

    def watch(done: int, total: int) -> None:
        if device == "cuda" and context is not None and context.is_missing:
            registry.open_device(device, context=context)  # raises the reason
        progress(done, total)

    return watch


def require_fit(spec: ModelSpec, config: ServeConfig, memory: Memory) -> Fit:
    """Check ``spec``, of a checkpoint :attr:`.load.Checkpoint.spec`, against the memory that is free now.

    Memory that this process holds already (a GPU's context) counts neither as free nor against the model.

    Raises:
        DoesNotFit: not even one sequence can be served; the message has the numbers and what would fit.
        ConfigError: this model or device cannot do what the settings ask for.
    """
    held_bytes = memory.process_bytes or 0
    request = FitRequest(
        max_context=config.max_context,
        max_concurrent=config.max_concurrent,
        max_auto_concurrent=STEP_SEQUENCES if config.deterministic else None,
        quantization=config.quantization,
        head_quantization=config.head_quantization,
        kv_dtype=config.kv_cache_dtype,
        kv_bf16_layers=config.kv_cache_bf16_layers,
        kv_dtypes_available=(BF16,) if config.deterministic else None,
        deterministic=config.deterministic,
        block_tokens=config.block_tokens,
        max_step_tokens=config.max_step_tokens,
        device=memory.device,
        kv_cache_bytes=config.kv_cache_memory,
        context_bytes=held_bytes,
        sm_count=memory.sm_count,
        formats_available=memory.formats,
    )
    usable = int(memory.free_bytes * config.memory_fraction) + held_bytes
    try:
        fit = check(spec, request, available_bytes=usable, device_name=memory.device_name)
    except RequestInvalid as error:
        raise ConfigError(error.message) from error
    if not fit.fits:
        raise DoesNotFit(fit.message + _others(memory), ledger=fit.to_dict())
    return fit


def _others(memory: Memory) -> str:
    """Return a sentence on the memory that other processes hold of a GPU, if it is enough to matter."""
    others_bytes = memory.total_bytes - memory.free_bytes - (memory.process_bytes or 0)
    if memory.device == "cpu" or others_bytes < GIB:
        return ""
    return f". Other processes hold {format_size(others_bytes)} of its memory (see nvidia-smi)"


def measured(before: Memory, device: Device) -> dict[str, object]:
    """Return the GPU, and the memory that it has given, to show beside the ledger.

    It is the memory allocated since ``before``, and all that the driver counts for this process (None where
    it does not count).
    """
    if before.device == "cpu":
        return {}
    now = device.memory()
    allocated = before.free_bytes - now.free_bytes
    return {
        "measured": {"allocatedBytes": allocated, "processBytes": now.process_bytes},
        "gpu": {"name": before.device_name, "memoryBytes": before.total_bytes},
    }


def smoke_test(runner: Runner, limits: Limits) -> None:
    """Let the engine generate one token.

    Raises:
        WeightsUnreadable: the logits were not numbers.
        ConfigError: not even one token may be asked for.
    """
    scheduler = make_scheduler(limits)
    greedy = SamplingParams(temperature=0.0)
    scheduler.submit(Submit("first-token", (0,), 1, greedy, ignore_eos=True, use_prefix_cache=False))
    (event,) = step(scheduler, runner)
    if event.finish == "refused":
        raise ConfigError(f"the start's first token: {event.message}.")
    if event.finish == "error":
        raise WeightsUnreadable(
            f"the start's first token: {UNSOUND_LOGITS}. Check the checkpoint's dtype and files, or download "
            "it again."
        )


def _kv_scales(path: Path, model: Model, device: Device, fit: Fit) -> tuple[KvScales, str]:
    """Return the scales of keys and values by layer, and words on them for the start-up log."""
    from wisp_runtime.models.kv_calibration import calibrate
    from wisp_runtime.models.kv_scales import read_kv_scales

    calibration = calibrate(model, device.ops, fit.kv, read_kv_scales(path, model.spec, fit.kv.inner))
    return calibration.scales, calibration.note


def make_runner(
    model: Model,
    device: Device,
    fit: Fit,
    limits: Limits,
    requested: DecodePath,
    kv_scales: KvScales | None = None,
) -> tuple[Runner, DecodeStrategy]:
    """Allocate caches and buffers, and return the runner; on a GPU, every size of step has run once.

    Args:
        model: model with its weights.
        device: device that it lies on.
        fit: sizes of the caches.
        limits: bounds of every step.
        requested: decode path of the settings.
        kv_scales: scales of a quantized KV cache, of layers where they are not 1.

    Raises:
        GpuOutOfMemory: another process took memory that the ledger counted on.
    """
    ops = device.ops
    cache = allocate(fit.cache.with_groups(model_groups(model.spec, fit.kv)), ops, kv_scales)
    device.reserve(model.spec, replace(limits.step, kv=fit.kv))
    if device.stream is None or device.sampler is None:
        on_host = CpuRunner(model, cache, ops.sample)
        return on_host, select_strategy(requested, on_host.forward_pass, ops, limits, 0)
    from wisp_runtime.engine.execution.device_runner import DeviceRunner

    runner = DeviceRunner(model, cache, device.sampler, device.stream, limits)
    co_running = device.co_running_processes()
    strategy = select_strategy(requested, runner.forward_pass, ops, limits, co_running)
    runner.warm_up()
    device.seal()
    return runner, strategy


def limits_of(spec: ModelSpec, config: ServeConfig, fit: Fit) -> Limits:
    """Return the bounds of every step.

    With ``--max-step-tokens auto`` a step in which sequences decode is smaller: on an H200 2,048 tokens of an
    8B take 47 ms, 8,192 take 190, and for so long each of these sequences would wait.
    """
    mixed = max(_MIXED_STEP_TOKENS, 2 * fit.max_concurrent)
    return Limits(
        cache=fit.cache,
        max_step_tokens=fit.max_step_tokens,
        max_concurrent=fit.max_concurrent,
        max_context=fit.max_context,
        vocab=spec.vocab,
        eos=frozenset(spec.eos_token_ids),
        reuses_prefixes=config.prefix_cache,
        mixed_step_tokens=min(fit.max_step_tokens, mixed) if config.max_step_tokens is None else None,
        separate_prefill_decode=config.deterministic,
        max_waiting=config.max_waiting,
        max_queue_wait_s=config.max_queue_wait,
        target_first_token_s=config.target_first_token,
        target_per_token_s=config.target_per_token,
        context_work=context_work(spec),
    )
