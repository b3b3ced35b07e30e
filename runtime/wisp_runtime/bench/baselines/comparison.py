"""Baseline comparison: Hugging Face transformers at the same shape on the same GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from wisp_plan.presets import SHAPES, shape_config
from wisp_runtime.bench.baselines import torch_baseline
from wisp_runtime.bench.record import Row
from wisp_runtime.errors import ConfigError

_PATHS = {
    "eager": "transformers, eager",
    "static": "transformers, compiled static cache",
    "continuous": "transformers, continuous batching",
}
_FAILED_LINES = 3


def torch_rows(
    shape: str,
    *,
    batches: Sequence[int],
    contexts: Sequence[int],
    steps: int,
    python: str = sys.executable,
    modes: Sequence[str] = torch_baseline.MODES,
    on_failure: Callable[[str], object],
) -> Iterator[Row]:
    """Measure transformers' decode step and first token, in a process that ends before ours starts.

    Args:
        shape: name of :mod:`wisp_plan.presets`.
        batches, contexts: batch sizes and context lengths; every pair is measured.
        steps: timed decode steps.
        python: Python executable with torch and transformers.
        modes: modes of ``torch_baseline.MODES``.
        on_failure: called with a line for each mode that transformers could not run.

    Raises:
        ConfigError: the shape has no config, or that Python has no torch.
    """
    if shape not in SHAPES:
        raise ConfigError("--against torch needs a named shape, whose random weights transformers can make")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape_config(shape)))
        command = [python, torch_baseline.__file__, folder, "--steps", str(steps), "--modes", ",".join(modes)]
        command += ["--batch", ",".join(map(str, batches)), "--context", ",".join(map(str, contexts))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = " | ".join(done.stderr.strip().splitlines()[-_FAILED_LINES:])
        raise ConfigError(
            f"--against torch: {python} could not run transformers on a GPU: {output}. "
            "Name a Python that has torch and transformers with --torch-python"
        )
    for line in done.stdout.splitlines():
        if not line.startswith("{"):
            continue
        measured = json.loads(line)
        if "error" in measured:
            on_failure(f"transformers, {measured['mode']}, batch {measured['batch']}: {measured['error']}")
        else:
            yield from _rows_of(measured, shape)


def _rows_of(measured: dict[str, object], shape: str) -> Iterator[Row]:
    path = _PATHS[str(measured["mode"])]
    batch, context = int(str(measured["batch"])), int(str(measured["context"]))
    versions = {"versions": f"transformers {measured['transformers']}, torch {measured['torch']}"}
    for metric, key in (("decode_step_ms", "step_ms"), ("first_token_ms", "first_token_ms")):
        if key in measured:
            value = float(str(measured[key]))
            yield Row(metric, value, path, shape, "bf16", "bf16", batch, context, more=dict(versions))
