"""What is measured: an engine in this process, brought up as the server's is, by shape or by folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wisp_plan.errors import PlanError
from wisp_plan.fit.verdict import Fit
from wisp_plan.memory.cache import kv_bytes_per_token
from wisp_plan.presets import SHAPES, shape_spec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.layout import padded
from wisp_runtime.bench import nvml
from wisp_runtime.bench.contexts import fill_with_noise
from wisp_runtime.bench.record import Row
from wisp_runtime.config import DecodePath, ServeConfig
from wisp_runtime.engine import startup
from wisp_runtime.engine.execution.runner import Runner
from wisp_runtime.engine.persistent.strategy import DecodeStrategy
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.errors import ConfigError
from wisp_runtime.models.load import load_model, random_model, read_spec
from wisp_runtime.ops import registry
from wisp_runtime.ops.protocol.device import Device
from wisp_runtime.ops.protocol.ops import Ops


@dataclass(frozen=True, slots=True)
class Wanted:
    """What shall be measured, and the room that the measurement needs.

    Attributes:
        shape: a name of :mod:`wisp_plan.presets` (random weights), or a model's folder.
        device: ``cuda`` or ``cpu``.
        batch: sequences at a time, at most.
        context: tokens of a sequence, prompt and answer, at most.
        kv_tokens: tokens that the KV cache has room for; None is all the memory there is, on the CPU room for
            ``batch`` sequences of ``context`` tokens.
        max_step_tokens: the prefill chunk; None is what ``serve`` has.
        block_tokens, threads: as of ``serve``.
        seed: of weights and prompts.
        decode_path, deterministic: as of ``serve``.
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


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine that can be measured."""

    wanted: Wanted
    spec: ModelSpec
    ops: Ops
    fit: Fit
    runner: Runner
    limits: Limits
    strategy: DecodeStrategy

    def scheduler(self) -> Scheduler:
        """Return a scheduler that has seen no request."""
        return make_scheduler(self.limits)

    @property
    def gpu(self) -> str | None:
        """The GPU's name; None on the CPU."""
        card = nvml.card() if self.ops.device == "cuda" else None
        return card.name if card else None

    def row(self, metric: str, value: float, **more: object) -> Row:
        """Make a row about this engine; keyword arguments that are no fields of a row go to ``more``."""
        own = {key: more.pop(key) for key in ("batch", "context", "floor") if key in more}
        return Row(
            metric,
            value,
            path=more.pop("path", "general" if self.ops.device == "cuda" else "reference"),  # type: ignore[arg-type]
            shape=self.wanted.shape if self.wanted.shape in SHAPES else Path(self.wanted.shape).name,
            weights=self.fit.quantization,
            kv=self.fit.kv_dtype,
            more=more,
            **own,  # type: ignore[arg-type]
        )


def spec_of(shape: str) -> ModelSpec:
    """Name the dimensions of a shape, or of the model in a folder.

    Raises:
        ConfigError: it is neither.
        RuntimeFailure: the folder holds no model we can run.
    """
    if shape in SHAPES or not Path(shape).is_dir():
        try:
            return shape_spec(shape)
        except PlanError as error:
            raise ConfigError(f"{error.message} A model's folder does as well") from error
    return read_spec(Path(shape))


def open_subject(wanted: Wanted, wrap: Callable[[Device], Device] = lambda device: device) -> Subject:
    """Bring up the engine that ``wanted`` describes.

    A named shape may get a longer context than was published: its weights are random anyway.

    Args:
        wanted: what to measure.
        wrap: may put something between the model and the device.

    Raises:
        RuntimeFailure: it does not fit, or cannot be had; the message says why.
    """
    spec = spec_of(wanted.shape)
    is_random = wanted.shape in SHAPES
    if is_random:
        spec = replace(spec, max_context=max(spec.max_context, wanted.context))
    config = _config(wanted, spec)
    device = wrap(registry.open_device(config.device, threads=config.threads))
    ops = device.ops
    if config.deterministic:
        ops.set_batch_invariant()
    memory = device.memory()
    device.require_model(spec, config.block_tokens)
    fit = startup.require_fit(spec, config, memory)
    model = random_model(spec, ops, wanted.seed) if is_random else load_model(Path(wanted.shape), spec, ops)
    limits = startup.limits_of(spec, config, fit)
    made = startup.make_runner(model, device, fit, limits, config.decode_path, memory)
    runner: Any = made[0]
    fill_with_noise(runner.forward_pass.cache, ops, wanted.seed)
    return Subject(wanted, spec, ops, fit, runner, limits, made[1])


def _config(wanted: Wanted, spec: ModelSpec) -> ServeConfig:
    settings: dict[str, object] = {"max_concurrent": wanted.batch, "max_context": wanted.context}
    if wanted.max_step_tokens is not None:
        settings["max_step_tokens"] = wanted.max_step_tokens
    tokens = wanted.kv_tokens
    if tokens is None and wanted.device == "cpu":  # where memory is shared with everything else
        tokens = wanted.batch * padded(wanted.context, wanted.block_tokens)
    if tokens is not None:
        kv_format = "float32" if wanted.device == "cpu" else "bf16"
        settings["kv_cache_memory"] = tokens * kv_bytes_per_token(spec, kv_format)
    return ServeConfig(
        model=wanted.shape,
        device=wanted.device,  # type: ignore[arg-type]
        block_tokens=wanted.block_tokens,
        threads=wanted.threads,
        decode_path=wanted.decode_path,
        deterministic=wanted.deterministic,
        **settings,  # type: ignore[arg-type]
    )
