"""What an engine really occupies, beside what the ledger said before it started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from wisp_runtime.bench import nvml
from wisp_runtime.bench.contexts import make_prompts
from wisp_runtime.bench.harness import Script, follow, requests_of
from wisp_runtime.bench.record import Row
from wisp_runtime.bench.target import Subject, Wanted, open_subject

_DECODE_STEPS = 8


def memory_rows(wanted: Wanted) -> Iterator[Row]:
    """Bring an engine up, run its largest steps, and compare.

    On a GPU what NVML says of this process, or of the whole card less what was taken before where it hides
    processes; on the CPU the growth of the process's peak.
    """
    before = _taken_bytes(wanted.device)
    subject = open_subject(wanted)
    run_largest_steps(subject)
    measured, source = _measured_bytes(wanted.device, before)
    ledger = subject.fit.ledger
    predicted = ledger.total_bytes
    held = {"batch": wanted.batch, "context": subject.limits.max_context}
    yield subject.row("memory_predicted_bytes", predicted, **held)
    yield subject.row(
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


def run_largest_steps(subject: Subject) -> None:
    """Run a prefill step as large as allowed, then decode with as many sequences as allowed."""
    limits, vocab = subject.limits, subject.spec.vocab
    longest = limits.max_context - _DECODE_STEPS
    each = max(1, min(longest, limits.max_step_tokens // limits.max_running))

    def script() -> Script:
        yield requests_of(make_prompts(1, longest, vocab, seed=7), 1, "longest", temperature=0.0)
        prompts = make_prompts(limits.max_running, each, vocab, seed=8)
        yield requests_of(prompts, _DECODE_STEPS, "widest", temperature=1.0, top_p=0.9, logprobs=1)

    follow(script(), subject.scheduler(), subject.runner)


def _taken_bytes(device: str) -> int:
    """Return what is taken before the engine starts: of the card, or of this process's memory."""
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
    """Return the most memory this process ever held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")
