"""Bring a model up: find it, check that it fits, read it, and prove it with a first token.

Each phase is told as it begins, moves and ends. Memory is checked before the first weight is read. The
phase "kernels" is all that stands between weights and a first step: here, the arena of the KV cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wisp_plan.errors import RequestInvalid
from wisp_plan.fit import Fit, FitRequest, check
from wisp_plan.host_memory import available_bytes
from wisp_plan.spec import ModelSpec
from wisp_runtime import loading
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.loop import step
from wisp_runtime.engine.messages import Phase, Ready, SamplingParams, Submit
from wisp_runtime.engine.plan import Limits
from wisp_runtime.engine.runner import Runner
from wisp_runtime.engine.scheduler import Scheduler
from wisp_runtime.errors import ConfigError, DoesNotFit, WeightsUnreadable
from wisp_runtime.memory.kv import KVCache, allocate
from wisp_runtime.ops import backend
from wisp_runtime.ops.backend import Ops

Tell = Callable[[Phase], None]
_TELL_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that has given its first token."""

    scheduler: Scheduler
    runner: Runner
    ready: Ready


def start(config: ServeConfig, tell: Tell) -> Engine:
    """Do everything up to the first token.

    Raises:
        RuntimeFailure: the one that says what is wrong (see :mod:`wisp_runtime.errors`).
    """
    with phase("pull", tell) as progress:
        path = loading.resolve(config.model, config.revision, config.cache_dir, progress)
    spec = loading.read_spec(path)
    ops = backend.load(config.device, threads=config.threads)
    fit = require_fit(spec, config)
    runner = _load(path, spec, ops, fit, tell)
    limits = _limits(spec, config, fit)
    with phase("firstToken", tell):
        prove(runner, limits)
    scheduler = Scheduler(limits)
    ready = Ready(
        max_context=limits.max_context,
        max_concurrent=limits.max_running,
        vocab_size=spec.vocab,
        eos_token_ids=spec.eos_token_ids,
        ledger=fit.to_dict(),
        kernels={"set": ops.kernels},
        device=ops.device,
        load=scheduler.load,
    )
    return Engine(scheduler, runner, ready)


@contextmanager
def phase(name: str, tell: Tell) -> Iterator[Callable[[int, int], None]]:
    """Tell that a phase begins, and when it has ended well; yields its ``progress(bytes, total_bytes)``."""
    began_s = told_s = time.monotonic()
    moved = (0, 0)
    tell(Phase(name))

    def progress(done: int, total: int) -> None:
        nonlocal told_s, moved
        moved, now_s = (done, total), time.monotonic()
        if now_s - told_s >= _TELL_EVERY_S:
            told_s = now_s
            tell(Phase(name, now_s - began_s, False, *moved))

    yield progress
    tell(Phase(name, time.monotonic() - began_s, True, *moved))


def require_fit(spec: ModelSpec, config: ServeConfig) -> Fit:
    """Check ``spec`` against the memory that is free now.

    Raises:
        DoesNotFit: not even one sequence can be served; the message has the numbers and what would fit.
        ConfigError: the settings ask for what this model or device cannot do at all.
    """
    request = FitRequest(
        max_context=config.max_context,
        max_concurrent=config.max_concurrent,
        quantization=config.quantization,
        kv_dtype=config.kv_cache_dtype,
        block_tokens=config.block_tokens,
        max_step_tokens=config.max_step_tokens,
        device="cpu",
        kv_cache_bytes=config.kv_cache_memory,
    )
    usable = int(available_bytes() * config.memory_fraction)
    try:
        fit = check(spec, request, available_bytes=usable, device_name="this machine")
    except RequestInvalid as error:
        raise ConfigError(error.message) from error
    if not fit.fits:
        raise DoesNotFit(fit.message, ledger=fit.to_dict())
    return fit


def prove(runner: Runner, limits: Limits) -> None:
    """Let the engine generate one token.

    Raises:
        WeightsUnreadable: what came out were not numbers.
    """
    scheduler = Scheduler(limits)
    greedy = SamplingParams(temperature=0.0)
    scheduler.submit(Submit("first-token", (0,), 1, greedy, ignore_eos=True, use_prefix_cache=False))
    (event,) = step(scheduler, runner)
    if event.finish == "error":
        raise WeightsUnreadable(f"the first step failed: {event.message}.")


def _load(path: Path, spec: ModelSpec, ops: Ops, fit: Fit, tell: Tell) -> Runner:
    with phase("weights", tell) as progress:
        model = loading.load_model(path, spec, ops, progress)
    with phase("kernels", tell):
        cache: KVCache = allocate(spec, ops, blocks=fit.kv_blocks, block_tokens=fit.block_tokens)
    return Runner(model, cache, ops.sample)


def _limits(spec: ModelSpec, config: ServeConfig, fit: Fit) -> Limits:
    return Limits(
        blocks=fit.kv_blocks,
        block_tokens=fit.block_tokens,
        max_step_tokens=config.max_step_tokens,
        max_concurrent=fit.max_concurrent,
        max_context=fit.max_context,
        vocab=spec.vocab,
        eos=frozenset(spec.eos_token_ids),
        reuses_prefixes=config.prefix_cache,
    )
