"""Selection of the decode strategy: a persistent kernel where it gives the logits of the general path.

The persistent kernel of the model is looked up, and compared with the general path (:mod:`.self_test`) before
the server is ready: a kernel that is wrong on this card, or a build that is stale, shows up here and not in
an answer.

In deterministic mode one path computes all decode steps: the persistent kernel of a model that can have one,
else the general path, whose ops are batch-invariant then. The model, its formats and the kind of GPU choose
it; whatever else keeps the kernel from a step, such as that it is not compiled, ends the start.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wisp_plan.spec.model import NOT_REPEATED, repeated_layers
from wisp_plan.units import GIB
from wisp_plan.weights.sizes import weight_bytes
from wisp_runtime.config import STEP_BLOCK_TOKENS, DecodePath, decode_hang
from wisp_runtime.engine.execution.forward import ForwardPass
from wisp_runtime.engine.execution.runner import Runner
from wisp_runtime.engine.persistent.co_running import WHY_SUSPENDED, CoRunningCheck
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.errors import ConfigError, KernelNotCompiled
from wisp_runtime.models.model import Model
from wisp_runtime.ops.protocol.attention import KvEncoding
from wisp_runtime.ops.protocol.device import Device
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.ops.protocol.persistent import PersistentKernel

_MIN_WEIGHT_BYTES = GIB
"""SmolLM2-135M on an H200: the persistent kernel 0.70 ms of GPU time, the general path 0.66; Llama-3.2-3B
1.94 and 1.99 as served."""


@dataclass(frozen=True, slots=True)
class DecodeStrategy:
    """Kernels of decode steps, as ``/state`` shows them.

    Attributes:
        path: ``persistent`` is the persistent kernel, ``general`` a launch an op, ``reference`` the CPU.
        why: reason why it is not persistent; empty if it is.
        up_to: sequences of a persistent step; steps of more are general.
        up_to_tokens: tokens of all their contexts together; steps that read more are general. None is no
            limit.
        is_deterministic: whether every decode step is computed so, whatever its size.
    """

    path: Literal["persistent", "general", "reference"]
    why: str = ""
    up_to: int = 0
    up_to_tokens: int | None = 0
    is_deterministic: bool = False

    def path_of(self, sequences: int, context_tokens: int) -> str:
        """Return the path of a step that decodes ``sequences`` with so many tokens of context in all."""
        is_short = self.up_to_tokens is None or context_tokens <= self.up_to_tokens
        is_persistent = sequences <= self.up_to and is_short
        return "general" if self.path == "persistent" and not is_persistent else self.path

    def why_not_persistent(self, sequences: int, context_tokens: int) -> str:
        """Return why a step that decodes so is not persistent; empty if it is. Arguments: :meth:`path_of`."""
        if self.path != "persistent":
            return self.why
        if sequences > self.up_to:
            return f"the persistent kernel is used up to {self.up_to} sequences"
        if self.up_to_tokens is not None and context_tokens > self.up_to_tokens:
            return f"the persistent kernel is used up to {self.up_to_tokens} tokens of context in all"
        return ""

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> DecodeStrategy:
        """Read the result of :meth:`to_dict`."""
        return cls(
            state["decodePath"],
            state.get("why", ""),
            state.get("upTo", 0),
            state.get("upToTokens"),
            state.get("deterministic", False),
        )

    def to_dict(self) -> dict[str, object]:
        """Return it for ``/state``."""
        state: dict[str, object] = {"decodePath": self.path}
        if self.is_deterministic:
            state["deterministic"] = True
        if self.why:
            return state | {"why": self.why}
        limits = {} if self.is_deterministic else {"upToTokens": self.up_to_tokens}
        return state | {"upTo": self.up_to} | limits


def select_strategy(
    requested: DecodePath, forward_pass: ForwardPass, ops: Ops, limits: Limits, co_running: int
) -> DecodeStrategy:
    """Give ``forward_pass`` the persistent kernel of its model if there is a sound one.

    Args:
        requested: path that the settings ask for.
        forward_pass: model and cache, blocks of which are overwritten.
        co_running: number of other processes whose kernels may run at once with ours.

    Raises:
        ConfigError: deterministic mode, and the model's persistent kernel cannot take all steps; or it is
            asked for, and there is none.
    """
    if ops.device == "cpu":
        if requested == "persistent":
            raise ConfigError("--decode-path persistent: the CPU computes op by op. Leave out --decode-path.")
        return DecodeStrategy("reference", "the CPU computes op by op")
    why_not = _refusal(requested, forward_pass, limits, co_running)
    if limits.separate_prefill_decode:
        return _select_deterministic(why_not, forward_pass, ops, limits)
    is_asked_for = requested == "persistent"
    strategy = why_not or _select_persistent(forward_pass, ops, limits, is_asked_for=is_asked_for)
    if isinstance(strategy, DecodeStrategy):
        return strategy
    if is_asked_for:
        raise ConfigError(f"--decode-path persistent: {strategy.removesuffix('.')}.")
    return DecodeStrategy("general", strategy)


def _select_persistent(
    forward_pass: ForwardPass, ops: Ops, limits: Limits, *, is_asked_for: bool
) -> DecodeStrategy | str:
    """Give ``forward_pass`` the persistent kernel; the reason where there is no sound one.

    Args:
        is_asked_for: whether to take one that was never timed, or is slower, for all sequences it computes.
    """
    kernel = _load_if_compiled(forward_pass, ops, limits, must_be_timed=not is_asked_for)
    if isinstance(kernel, str):
        return kernel
    best_up_to, kernel.max_context_tokens = kernel.max_context_tokens, sys.maxsize
    if not is_asked_for:
        kernel.max_sequences = min(kernel.max_sequences, kernel.faster_up_to)
    if why_not := _difference(forward_pass, kernel, ops, limits):
        return why_not
    kernel.max_context_tokens, forward_pass.persistent = best_up_to, kernel
    return DecodeStrategy("persistent", "", kernel.max_sequences, best_up_to)


def _select_deterministic(
    why_not: str | None, forward_pass: ForwardPass, ops: Ops, limits: Limits
) -> DecodeStrategy:
    """Return the path of all decode steps; ``why_not``: reason against the persistent kernel, if any.

    Raises:
        ConfigError: the model can have a persistent kernel, which cannot take all steps now.
    """
    encodings = forward_pass.cache.encodings
    needed = "--deterministic needs the persistent decode kernel of this model"
    try:
        kernel = load_persistent(forward_pass.model, ops, limits.max_running, encodings)
    except KernelNotCompiled as error:
        raise ConfigError(f"{needed}: {error.message}") from None
    if isinstance(kernel, str):
        return DecodeStrategy("general", kernel, is_deterministic=True)
    kernel.max_context_tokens = sys.maxsize
    if why_not is None and kernel.max_sequences < limits.max_running:
        why_not = (
            f"a step has at most {kernel.max_sequences} sequences; "
            f"lower --max-concurrent {limits.max_running}"
        )
    if why_not := why_not or _difference(forward_pass, kernel, ops, limits):
        raise ConfigError(f"{needed}: {why_not}.")
    forward_pass.persistent = kernel
    return DecodeStrategy("persistent", "", kernel.max_sequences, None, is_deterministic=True)


def _difference(forward_pass: ForwardPass, kernel: PersistentKernel, ops: Ops, limits: Limits) -> str | None:
    """Return the difference between the logits of both paths, if it is too large."""
    from wisp_runtime.engine.persistent.self_test import compare_logits

    return compare_logits(forward_pass, kernel, ops, limits)


def _load_if_compiled(
    forward_pass: ForwardPass, ops: Ops, limits: Limits, *, must_be_timed: bool
) -> PersistentKernel | str:
    model, encodings = forward_pass.model, forward_pass.cache.encodings
    try:
        return load_persistent(model, ops, limits.max_running, encodings, must_be_timed=must_be_timed)
    except KernelNotCompiled as error:
        return error.message


def load_persistent(
    model: Model,
    ops: Ops,
    max_sequences: int,
    encodings: Sequence[KvEncoding],
    *,
    must_be_timed: bool = False,
) -> PersistentKernel | str:
    """Return the persistent kernel of ``model`` for up to ``max_sequences``, or why it can have none.

    Args:
        encodings: encodings of the layers' keys and values.
        must_be_timed: whether to refuse a kernel that was never timed beside the general path.

    Raises:
        KernelNotCompiled: it can have one, which is not compiled.
    """
    layers = repeated_layers(model.spec)
    if layers is None:
        return NOT_REPEATED
    rope = model.rope_table(layers.attention)
    made = model.spec, model.weights, rope, max_sequences, encodings
    kernel = ops.persistent_kernel(*made, must_be_timed=must_be_timed)
    if not isinstance(kernel, str) and model.expert_load.counts is not None:
        kernel.count_experts(model.expert_load.counts)
    return kernel


def _refusal(requested: DecodePath, forward_pass: ForwardPass, limits: Limits, co_running: int) -> str | None:
    spec, formats = forward_pass.model.spec, forward_pass.cache.kv_formats
    if requested == "general":
        return "--decode-path general"
    if hang := decode_hang():
        return f"{hang}; the server started again without the persistent kernel"
    is_small = weight_bytes(spec, "bf16", "cuda").weights < _MIN_WEIGHT_BYTES
    if is_small and requested == "auto" and not limits.separate_prefill_decode:
        return "the model is small: barriers of the persistent kernel take longer than launches of the others"
    if len(formats) > 1:
        names = " and ".join(kv_format.name for kv_format in formats)
        return f"keys and values are {names}: the persistent kernel reads one format in all layers"
    if limits.block_tokens % STEP_BLOCK_TOKENS:
        return f"KV blocks of {limits.block_tokens} tokens, not a multiple of {STEP_BLOCK_TOKENS}"
    if co_running:
        return WHY_SUSPENDED
    return None


def watch_co_running(runner: Runner, strategy: DecodeStrategy, device: Device) -> CoRunningCheck | None:
    """Check before each step whether the persistent kernel may run; None where there is nothing to check.

    In deterministic mode nothing is checked after the start: a row that changed paths would change its bits.
    """
    if strategy.is_deterministic or strategy.path != "persistent":
        return None
    from wisp_runtime.engine.execution.device_runner import DeviceRunner

    if not isinstance(runner, DeviceRunner) or runner.forward_pass.persistent is None:
        return None
    check = CoRunningCheck(runner.forward_pass.persistent, device.co_running_processes)
    runner.before_step = check
    return check
