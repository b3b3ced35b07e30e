"""Perplexity of a model on a text: the exponential of the mean negative log likelihood of its tokens.

The text is split into windows; within each, every token but the first is predicted from those before it.
Source: Jelinek et al. 1977, "Perplexity: a measure of the difficulty of speech recognition tasks".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wisp_plan.kv_formats.layers import KvLayers
from wisp_runtime.batch import Array
from wisp_runtime.layers.cache import allocate_blocks
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.models.model import Model
from wisp_runtime.models.single_sequence import BLOCK_TOKENS, blocks_of, sequence_batch
from wisp_runtime.models.text_tokens import read_tokens
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.cpu.threads import available_threads

_STEP_TOKENS = 128  # logits are float32: 64 MB at a vocabulary of 128 K

OnProgress = Callable[[int, int], None]
"""``on_progress(tokens_done, tokens)``."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Likelihood of a text.

    Attributes:
        tokens: tokens that were predicted.
        nats: sum of their negative log likelihoods.
    """

    tokens: int
    nats: float

    @property
    def value(self) -> float:
        """The perplexity."""
        return math.exp(self.nats / self.tokens)


def perplexity_of(
    folder: Path,
    text: str,
    *,
    window: int = 512,
    kv: str = "bf16",
    threads: int | None = None,
    on_progress: OnProgress,
) -> Perplexity:
    """Measure the model in ``folder`` on the CPU, in float32 after dequantization.

    Args:
        text: the text.
        window: tokens of a window.
        kv: format of the KV cache; ``bf16`` is float32 on the CPU.
        threads: CPU threads; None: as many as are available.

    Raises:
        ConfigError: the text has fewer than two tokens.
        RuntimeFailure: the model cannot be loaded.
    """
    spec = read_spec(folder)
    tokens = read_tokens(folder, text, spec.vocab)
    ops = CpuOps(threads or available_threads())
    model = load_model(folder, spec, ops)
    return measure(model, ops, tokens, min(window, spec.max_context), on_progress, kv)


def measure(
    model: Model,
    ops: CpuOps,
    tokens: Sequence[int],
    window: int,
    on_progress: OnProgress,
    kv: str = "bf16",
) -> Perplexity:
    """Measure a loaded model on ``tokens``; arguments as of :func:`perplexity_of`."""
    cache = allocate_blocks(
        model.spec, ops, blocks=blocks_of(window), block_tokens=BLOCK_TOKENS, kv=KvLayers.of(kv, "cpu")
    )
    nats, predicted = 0.0, 0
    for start in range(0, len(tokens) - 1, window):
        part = tokens[start : start + window]
        for first in range(0, len(part), _STEP_TOKENS):
            step = part[first : first + _STEP_TOKENS]
            targets = part[first + 1 : first + 1 + len(step)]
            batch = sequence_batch(step, first, window, range(len(step)), len(cache.groups))
            logits = ops.to_host(model.forward(batch, cache).logits)
            nats += negative_log_likelihood(logits[: len(targets)], np.asarray(targets, np.int64))
            predicted += len(targets)
            on_progress(min(start + first + len(step), len(tokens)), len(tokens))
    return Perplexity(predicted, nats)


def negative_log_likelihood(logits: Array, targets: Array) -> float:
    """Return the sum over rows of ``logits`` ``[R, V]`` of minus the log softmax at ``targets`` ``[R]``."""
    highest = logits.max(axis=1, keepdims=True)
    totals = np.log(np.exp(logits - highest).sum(axis=1, dtype=np.float64)) + highest[:, 0]
    return float((totals - logits[np.arange(len(targets)), targets]).sum())
