"""Published baselines: other programs' numbers on the same GPU.

Source: ``tests/bench/baselines/README.md``, with their commands. A row gets a baseline only where GPU, shape,
format, batch and context are equal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from wisp_runtime.bench.record import Row

VLLM = "vllm-0.26.0"


class Baseline(NamedTuple):
    """One number of another program.

    Attributes:
        metric, shape, weights, batch, context, cached: fields of :class:`.record.Row`.
        value: number in the metric's unit.
        name: name of the program.
        gpu: part of the driver's name of the GPU.
    """

    metric: str
    shape: str
    weights: str
    batch: int
    context: int
    value: float
    cached: int = 0
    name: str = VLLM
    gpu: str = "H200"


_8B, _BF16 = "llama-3-8b", "bf16"
_DECODE, _FIRST = "decode_step_ms", "first_token_ms"
_DECODE_512 = {1: 4.857, 4: 4.952, 8: 5.088, 16: 5.308, 32: 5.851, 64: 6.698, 128: 8.749, 256: 13.967}
_DECODE_FP8 = {1: 3.476, 8: 3.640, 32: 4.868, 64: 5.228}
_FIRST_BF16 = {128: 9.27, 512: 15.10, 2048: 50.43, 7900: 207.7}
_FIRST_FP8 = {128: 7.97, 512: 11.75, 2048: 32.12, 7900: 140.4}
_30B = "qwen3-30b-a3b"
_DECODE_30B = {1: 4.145, 8: 9.046, 32: 15.638}
_FIRST_30B = {512: 24.04, 7900: 146.07}
_PREFILL = {(1, 8192): 38092, (8, 8192): 38372, (16, 2048): 42526, (64, 512): 43492}

BASELINES = (
    *(Baseline(_DECODE, _8B, _BF16, batch, 512, value) for batch, value in _DECODE_512.items()),
    *(Baseline(_DECODE, _8B, "fp8", batch, 512, value) for batch, value in _DECODE_FP8.items()),
    Baseline(_DECODE, _8B, _BF16, 1, 7900, 5.116),
    Baseline(_DECODE, _8B, _BF16, 16, 7900, 8.750),
    Baseline(_DECODE, "llama-3.2-3b", _BF16, 1, 512, 2.711),
    Baseline(_DECODE, "smollm2-135m", _BF16, 1, 512, 1.23),
    Baseline(_DECODE, "smollm2-135m", _BF16, 32, 512, 1.50),
    *(Baseline(_FIRST, _8B, _BF16, 1, prompt, value) for prompt, value in _FIRST_BF16.items()),
    *(Baseline(_FIRST, _8B, "fp8", 1, prompt, value) for prompt, value in _FIRST_FP8.items()),
    Baseline(_FIRST, _8B, _BF16, 1, 7916, 11.958, cached=7888),
    *(Baseline(_DECODE, _30B, _BF16, batch, 512, value) for batch, value in _DECODE_30B.items()),
    *(Baseline(_FIRST, _30B, _BF16, 1, prompt, value) for prompt, value in _FIRST_30B.items()),
    *(
        Baseline("prefill_tokens_per_s", _8B, _BF16, batch, prompt, value)
        for (batch, prompt), value in _PREFILL.items()
    ),
    Baseline("start_to_first_token_s", _8B, _BF16, 1, 0, 25.0),
)


def with_baseline(row: Row, gpu: str | None) -> Row:
    """Return ``row`` with the baseline that was measured under its conditions, if there is one."""
    key = (row.metric, row.shape, row.weights, row.batch, row.context, row.more.get("cached", 0))
    for base in BASELINES:
        base_key = (base.metric, base.shape, base.weights, base.batch, base.context, base.cached)
        if gpu and base.gpu in gpu and base_key == key and row.kv == _BF16:
            return replace(row, baseline=base.name, baseline_value=base.value)
    return row
