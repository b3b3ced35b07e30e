"""Measured memory of an engine against the ledger's prediction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from wisp_runtime.bench import nvml
from wisp_runtime.bench.contexts import make_prompts
from wisp_runtime.bench.harness import Script, requests_of, run_script
from wisp_runtime.bench.record import Row
from wisp_runtime.bench.target import Target, TargetOptions, open_target

_DECODE_STEPS = 8


def memory_rows(options: TargetOptions) -> Iterator[Row]:
    """Start an engine, run its largest steps, and compare.

    On a GPU, NVML's bytes of this process, or of the card less its earlier use where processes are hidden; on
    the CPU, the growth of the process's peak.
    """
    before = _taken_bytes(options.device)
    target = open_target(options)
    run_largest_steps(target)
    measured, source = _measured_bytes(options.device, before)
    ledger = target.fit.ledger
    predicted = ledger.total_bytes
    held = {"batch": options.batch, "context": target.limits.max_context}
    yield target.row("memory_predicted_bytes", predicted, **held)
    yield target.row(
        "memory_measured_bytes",
        measured,
        **held,
        source=source,
        off_percent=100 * (measured - predicted) / predicted,
        beyond_weights_and_kv_bytes=measured
        - ledger.weights_bytes
        - ledger.scales_bytes
        - ledger.kv_cache_bytes,
    )


def run_largest_steps(target: Target) -> None:
    """Run the largest allowed prefill step, then decode the maximum of sequences."""
    limits, vocab = target.limits, target.spec.vocab
    longest = limits.max_context - _DECODE_STEPS
    each = max(1, min(longest, limits.max_step_tokens // limits.max_running))

    def script() -> Script:
        yield requests_of(make_prompts(1, longest, vocab, seed=7), 1, "longest", temperature=0.0)
        prompts = make_prompts(limits.max_running, each, vocab, seed=8)
        yield requests_of(prompts, _DECODE_STEPS, "widest", temperature=1.0, top_p=0.9, logprobs=1)

    run_script(script(), target.scheduler(), target.runner)


def _taken_bytes(device: str) -> int:
    """Return the bytes in use before the engine starts: of the card, or of this process."""
    if device == "cuda":
        return nvml.used_bytes() or 0
    return _peak_bytes()


def _measured_bytes(device: str, before: int) -> tuple[int, str]:
    if device != "cuda":
        return _peak_bytes() - before, "process"
    own = nvml.process_bytes(os.getpid())
    if own is not None:
        return own, "process"
    return (nvml.used_bytes() or 0) - before, "card"


def _peak_bytes() -> int:
    """Return this process's peak memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")
