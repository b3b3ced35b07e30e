"""How steps that only decode run on a GPU: in one launch each, if that gives what the general path gives.

The model's own kernels are asked for, and then tried (:mod:`.decode_trial`) before the server says ready: a
kernel that is wrong on this card, or a build that is not what it says, is found here and not in an answer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import GIB
from wisp_plan.weights.formats import weight_bytes
from wisp_runtime.config import STEP_BLOCK_TOKENS, DecodePath
from wisp_runtime.engine.persistent.self_test import differs
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.errors import ConfigError
from wisp_runtime.layers.cache import KVCache
from wisp_runtime.models.model import Model
from wisp_runtime.ops.protocol.device import Memory
from wisp_runtime.ops.protocol.ops import Ops

_FASTER_UP_TO = 32
"""Sequences of a step; with 64 the general path takes 6.14 ms of an 8B on an H200, one launch 6.28."""

_LEAST_WEIGHT_BYTES = GIB
"""SmolLM2-135M on an H200: one launch 0.70 ms of GPU time, the general path 0.66; Llama-3.2-3B 1.94 and 1.99
as served."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The path of decode steps, as ``/state`` shows it.

    Attributes:
        path: ``persistent`` is one launch a step, ``general`` a launch an op, ``reference`` the CPU.
        why: why it is not persistent; empty if it is.
        up_to: sequences of a persistent step; steps of more are general.
        up_to_tokens: of all their contexts together; steps that read more are general. None: none are.
        is_deterministic: whether every decode step is computed so, whatever its size.
    """

    path: Literal["persistent", "general", "reference"]
    why: str = ""
    up_to: int = 0
    up_to_tokens: int | None = 0
    is_deterministic: bool = False

    def of(self, sequences: int, context_tokens: int) -> str:
        """Return the path of a step that decodes ``sequences`` with so many tokens of context in all."""
        is_short = self.up_to_tokens is None or context_tokens <= self.up_to_tokens
        is_persistent = sequences <= self.up_to and is_short
        return "general" if self.path == "persistent" and not is_persistent else self.path

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Chosen:
        """Read what :meth:`to_dict` wrote."""
        return cls(
            told["decodePath"],
            told.get("why", ""),
            told.get("upTo", 0),
            told.get("upToTokens"),
            told.get("deterministic", False),
        )

    def to_dict(self) -> dict[str, object]:
        """Return it for ``/state``."""
        if self.why:
            return {"decodePath": self.path, "why": self.why}
        if self.is_deterministic:
            return {"decodePath": self.path, "deterministic": True, "upTo": self.up_to}
        return {"decodePath": self.path, "upTo": self.up_to, "upToTokens": self.up_to_tokens}


def choose(
    wanted: DecodePath, model: Model, cache: KVCache, ops: Ops, limits: Limits, memory: Memory
) -> Chosen:
    """Let ``model`` run decode steps in one launch if it can; blocks of ``cache`` are overwritten.

    Args:
        memory: of the device, before the model was loaded.

    Raises:
        ConfigError: deterministic mode, and there is no such step.
    """
    if ops.device == "cpu":
        return Chosen("reference", "the CPU computes op by op")
    most = limits.max_running if limits.keeps_apart else min(limits.max_running, _FASTER_UP_TO)
    why = _why_not(wanted, model.spec, limits, memory) or model.use_whole_steps(most)
    step = model.whole_step
    if why is None and step is not None:
        best_up_to, step.max_context_tokens = step.max_context_tokens, sys.maxsize
        if limits.keeps_apart and step.max_sequences < most:
            why = f"a step has at most {step.max_sequences} sequences; lower --max-concurrent {most}"
        why = why or differs(model, step, cache, ops, limits)
        if not limits.keeps_apart:
            step.max_context_tokens = best_up_to
        if why is None:
            most_tokens = None if limits.keeps_apart else best_up_to
            return Chosen("persistent", "", step.max_sequences, most_tokens, limits.keeps_apart)
    if limits.keeps_apart:
        raise ConfigError(f"--deterministic needs decode steps in one launch: {why}.")
    model.whole_step = None
    return Chosen("general", why or "")


def _why_not(wanted: DecodePath, spec: ModelSpec, limits: Limits, memory: Memory) -> str | None:
    others_bytes = memory.total_bytes - memory.free_bytes - (memory.process_bytes or 0)
    if wanted == "general":
        return "--decode-path general"
    is_small = weight_bytes(spec, "bf16", "cuda").weights < _LEAST_WEIGHT_BYTES
    if is_small and not limits.keeps_apart:
        return "the model is small: the barriers of one launch take longer than its kernels' edges"
    if limits.block_tokens % STEP_BLOCK_TOKENS:
        return f"KV blocks of {limits.block_tokens} tokens, not a multiple of {STEP_BLOCK_TOKENS}"
    if memory.process_bytes is not None and others_bytes >= GIB:
        return "another process uses the GPU, so not all thread blocks of a step may run at once"
    return None
