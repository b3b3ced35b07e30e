"""How steps that only decode run on a GPU: in one launch each, if that gives what the general path gives.

The model's own kernels are asked for, and then tried on a real step, before the server says ready: a kernel
that is wrong on this card, or a build that is not what it says, is found here and not in an answer.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from wisp_plan.formats import weight_bytes
from wisp_plan.sizes import GIB
from wisp_plan.spec import ModelSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.config import DecodePath
from wisp_runtime.engine.plan import Limits
from wisp_runtime.errors import ConfigError
from wisp_runtime.memory.kv import KVCache
from wisp_runtime.models.model import Model
from wisp_runtime.ops.backend import Memory, Ops

_FASTER_UP_TO = 32
"""Sequences of a step; with 64 the general path takes 5.9 ms of an 8B on an H200, one launch 6.3."""

_LEAST_WEIGHT_BYTES = GIB
"""SmolLM2-135M on an H200: one launch 0.70 ms of GPU time, the general path 0.66; Llama-3.2-3B 1.94 and 1.99
as served."""

_PROMPT_TOKENS = 37
_LEAST_COSINE = 0.99
"""Of the logits of the two paths; bf16 alone leaves 0.999 of random weights."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The path of decode steps, as ``/state`` shows it.

    Attributes:
        path: ``persistent`` is one launch a step, ``general`` a launch an op, ``reference`` the CPU.
        why: why it is not persistent; empty if it is.
        up_to: sequences of a persistent step; steps of more are general.
        up_to_tokens: of all their contexts together; steps that read more are general.
    """

    path: Literal["persistent", "general", "reference"]
    why: str = ""
    up_to: int = 0
    up_to_tokens: int = 0

    def of(self, sequences: int, context_tokens: int) -> str:
        """Return the path of a step that decodes ``sequences`` with so many tokens of context in all."""
        is_persistent = sequences <= self.up_to and context_tokens <= self.up_to_tokens
        return "general" if self.path == "persistent" and not is_persistent else self.path

    def to_dict(self) -> dict[str, object]:
        """Return it for ``/state``."""
        if self.why:
            return {"decodePath": self.path, "why": self.why}
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
        why = _differs(model, cache, ops, limits, step.max_sequences)
        if limits.keeps_apart:
            step.max_context_tokens = sys.maxsize
            if step.max_sequences < most:
                why = f"a step has at most {step.max_sequences} sequences; lower --max-concurrent {most}"
        if why is None:
            return Chosen("persistent", "", step.max_sequences, step.max_context_tokens)
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
    if limits.block_tokens % 16:
        return f"KV blocks of {limits.block_tokens} tokens, not a multiple of 16"
    if memory.process_bytes is not None and others_bytes >= GIB:
        return "another process uses the GPU, so not all thread blocks of a step may run at once"
    return None


def _differs(model: Model, cache: KVCache, ops: Ops, limits: Limits, most: int) -> str | None:
    """Run a prompt, then a step of it both ways, in every width; say by how much they differ if they do."""
    tokens = min(_PROMPT_TOKENS, limits.max_context - 1, limits.blocks * limits.block_tokens - 1)
    ids = np.arange(1, tokens + 2) % limits.vocab
    model_step, model.whole_step = model.whole_step, None
    if tokens > 1:
        model.forward(_batch(ops, limits, ids, 0, tokens, 1), cache)
    for rows in sorted({min(width, most) for width in (1, 16, 32, 64)}):
        batch = _batch(ops, limits, ids, tokens, tokens + 1, rows)
        general = ops.to_host(model.forward(batch, cache)).astype(np.float64)
        model.whole_step = model_step
        whole = ops.to_host(model.forward(batch, cache)).astype(np.float64)
        model.whole_step = None
        sizes = np.linalg.norm(general, axis=1) * np.linalg.norm(whole, axis=1)
        cosine = float(((general * whole).sum(axis=1) / sizes).min())
        if not cosine >= _LEAST_COSINE:
            return f"a step of {rows} in one launch differs from the general path: cosine {cosine:.4f}"
    model.whole_step = model_step
    return None


def _batch(ops: Ops, limits: Limits, ids: Array, first: int, end: int, rows: int) -> Batch:
    """Tokens ``first`` to ``end`` of one sequence, in ``rows`` sequences that share its blocks."""
    blocks = np.arange(-(-end // limits.block_tokens), dtype=np.int32)
    count = end - first
    arrays: tuple[Any, ...] = (
        np.tile(ids[first:end], rows).astype(np.int32),
        np.tile(np.arange(first, end), rows).astype(np.int32),
        np.tile(np.arange(first, end), rows).astype(np.int64),
        np.arange(0, rows * count + 1, count, dtype=np.int32),
        np.full(rows, end, np.int32),
        np.tile(blocks, (rows, 1)),
        np.arange(count - 1, rows * count, count, dtype=np.int64),
    )
    starts, contexts = (tuple(one.tolist()) for one in arrays[3:5])
    tokens, positions, slots, query_starts, lengths, tables, wanted = map(ops.from_host, arrays)
    return Batch(tokens, positions, slots, query_starts, lengths, tables, wanted, starts, contexts)
