"""Target of a benchmark: an engine in this process, started as the server's is, by shape or by folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from wisp_plan.errors import PlanError
from wisp_plan.fit.verdict import Fit
from wisp_plan.kv_formats.layers import KvLayers
from wisp_plan.memory.batch_buckets import bucket_for, buckets
from wisp_plan.memory.cache import SNAPSHOTS_A_SEQUENCE, kv_bytes_per_token, model_groups
from wisp_plan.presets import SHAPES, shape_spec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.stored_presets import STORED_SCHEMES, stored_as
from wisp_plan.weights.layout import padded
from wisp_runtime.bench import nvml
from wisp_runtime.bench.contexts import fill_with_noise
from wisp_runtime.bench.record import Row
from wisp_runtime.config import DecodePath, HeadQuantization, KVCacheDtype, ServeConfig
from wisp_runtime.engine import startup
from wisp_runtime.engine.execution.runner import Runner
from wisp_runtime.engine.persistent.strategy import DecodeStrategy
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.errors import ConfigError
from wisp_runtime.layers.expert_load import ExpertLoad
from wisp_runtime.models.load import open_checkpoint, random_model, read_spec
from wisp_runtime.ops import registry
from wisp_runtime.ops.protocol.device import Device
from wisp_runtime.ops.protocol.ops import Ops


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Engine to measure, and the sizes that the benchmark needs.

    Attributes:
        shape: name of :mod:`wisp_plan.presets` (random weights), or a model's folder.
        device: ``cuda`` or ``cpu``.
        batch: maximum of sequences at a time.
        context: maximum of a sequence's tokens, prompt and completion.
        kv_tokens: capacity of the KV cache; None: all free memory, on the CPU ``batch`` sequences of
            ``context`` tokens.
        max_step_tokens: prefill chunk; None: the default of ``serve``.
        block_tokens, threads: settings of ``serve``.
        seed: seed of weights and prompts.
        decode_path, deterministic: settings of ``serve``.
        quantization: setting of ``serve``; of random weights any packed format, as if stored so.
        head_quantization: setting of ``serve``.
        kv_cache_dtype, kv_cache_bf16_layers: settings of ``serve``.
    """

    shape: str
    device: str
    batch: int
    context: int
    kv_tokens: int | None = None
    max_step_tokens: int | None = None
    block_tokens: int = 16
    threads: int | None = None
    seed: int = 0
    decode_path: DecodePath = "auto"
    deterministic: bool = False
    quantization: str = "auto"
    head_quantization: HeadQuantization = "bf16"
    kv_cache_dtype: KVCacheDtype = "auto"
    kv_cache_bf16_layers: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """An engine to measure."""

    options: TargetOptions
    spec: ModelSpec
    ops: Ops
    fit: Fit
    runner: Runner
    limits: Limits
    strategy: DecodeStrategy

    @property
    def expert_load(self) -> ExpertLoad:
        """Counters of the load of the model's experts."""
        load: ExpertLoad = cast(Any, self.runner).forward_pass.model.expert_load
        return load

    def scheduler(self) -> Scheduler:
        """Return a new scheduler."""
        return make_scheduler(self.limits)

    def routed_rows(self, sequences: int, context_tokens: int) -> int:
        """Return the rows that a step which decodes ``sequences`` sends to experts.

        On the general path of a GPU those that round it up are among them; the persistent kernel leaves
        them out. Arguments: :meth:`.DecodeStrategy.path_of`.
        """
        is_rounded = self.strategy.path_of(sequences, context_tokens) == "general"
        return bucket_for(sequences, buckets(self.limits.max_running)) if is_rounded else sequences

    @property
    def gpu(self) -> str | None:
        """Name of the GPU; None on the CPU."""
        card = nvml.card() if self.ops.device == "cuda" else None
        return card.name if card else None

    def row(self, metric: str, value: float, **more: object) -> Row:
        """Make a row about this engine; keyword arguments that are no fields of a row go to ``more``."""
        own = {key: more.pop(key) for key in ("batch", "context", "lower_bound") if key in more}
        return Row(
            metric,
            value,
            path=more.pop("path", "general" if self.ops.device == "cuda" else "reference"),  # type: ignore[arg-type]
            shape=self.options.shape if self.options.shape in SHAPES else Path(self.options.shape).name,
            weights=self.fit.quantization,
            kv=str(self.fit.kv),
            more=more,
            **own,  # type: ignore[arg-type]
        )


def spec_of(shape: str) -> ModelSpec:
    """Return the spec of a named shape, or of the model in a folder.

    Raises:
        ConfigError: it is neither.
        RuntimeFailure: the folder holds no supported model.
    """
    if shape in SHAPES or not Path(shape).is_dir():
        try:
            return shape_spec(shape)
        except PlanError as error:
            raise ConfigError(f"{error.message} A model's folder does as well") from error
    return read_spec(Path(shape))


def open_target(options: TargetOptions, wrap: Callable[[Device], Device] = lambda device: device) -> Target:
    """Start the engine that ``options`` describes.

    A named shape may get a longer context than was published: its weights are random anyway.

    Args:
        options: engine to measure.
        wrap: wrapper of the device.

    Raises:
        RuntimeFailure: it does not fit, or cannot be started.
    """
    spec = spec_of(options.shape)
    is_random = options.shape in SHAPES
    if is_random:
        spec = replace(spec, max_context=max(spec.max_context, options.context))
        spec = stored_as(spec, options.quantization)
    else:
        spec = open_checkpoint(
            Path(options.shape), spec
        ).spec  # with the layers that its headers have quantized
    config = _serve_config(options, spec)
    device = wrap(registry.open_device(config.device, threads=config.threads))
    ops = device.ops
    if config.deterministic:
        ops.set_batch_invariant()
    memory = device.memory()
    device.require_model(spec, config.block_tokens)
    fit = startup.require_fit(spec, config, memory)
    device.require_kv(fit.kv)
    held = fit.ledger.options.quantization
    if is_random:
        model = random_model(spec, ops, options.seed, quantization=held, formats=memory.formats)
    else:
        model = open_checkpoint(Path(options.shape), spec).held(held, memory.formats).load(ops)
    limits = startup.limits_of(spec, config, fit)
    made = startup.make_runner(model, device, fit, limits, config.decode_path)
    runner: Any = made[0]
    fill_with_noise(runner.forward_pass.cache, ops, options.seed)
    return Target(options, spec, ops, fit, runner, limits, made[1])


def _serve_config(options: TargetOptions, spec: ModelSpec) -> ServeConfig:
    settings: dict[str, object] = {"max_concurrent": options.batch, "max_context": options.context}
    if options.max_step_tokens is not None:
        settings["max_step_tokens"] = options.max_step_tokens
    tokens = options.kv_tokens
    if tokens is None and options.device == "cpu":  # where memory is shared with everything else
        tokens = options.batch * padded(options.context, options.block_tokens)
    if tokens is not None:
        name = "bf16" if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
        kv = KvLayers.of(name, options.device, options.kv_cache_bf16_layers)  # type: ignore[arg-type]
        settings["kv_cache_memory"] = tokens * kv_bytes_per_token(spec, kv) + _states_bytes(spec, kv, options)
    return ServeConfig(
        model=options.shape,
        device=options.device,  # type: ignore[arg-type]
        block_tokens=options.block_tokens,
        threads=options.threads,
        decode_path=options.decode_path,
        deterministic=options.deterministic,
        head_quantization=options.head_quantization,
        quantization="auto" if options.quantization in STORED_SCHEMES else options.quantization,  # type: ignore[arg-type]
        kv_cache_dtype=options.kv_cache_dtype,
        kv_cache_bf16_layers=options.kv_cache_bf16_layers,
        **settings,  # type: ignore[arg-type]
    )


def _states_bytes(spec: ModelSpec, kv: KvLayers, options: TargetOptions) -> int:
    """Count the recurrent states of all sequences, and their snapshots."""
    slots = options.batch * (1 + SNAPSHOTS_A_SEQUENCE)
    return slots * sum(group.slot_bytes for group in model_groups(spec, kv))
