"""Choice of the number of CPU threads: a decode step's GEMMs, timed at start with 1, 2, 4 … threads.

More threads are not always faster: on a shared machine, or where two of them are one core's, a GEMM of a
small model is over before the second has woken. The trial takes some tens of milliseconds, with dozens of
threads and a large model some hundreds.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.batch import Array
from wisp_runtime.ops import reference
from wisp_runtime.ops.cpu.packed import PackedMatrix, packed_shape
from wisp_runtime.ops.cpu.threads import Work, Workers, bytes_worth, is_worth_splitting

log = logging.getLogger(__name__)

_TRIAL_BYTES = 16 << 20  # beyond most cores' caches: a step's weights come from memory too
_MATRIX_BYTES = 8 << 20  # of few threads: more of them share larger ones
_TRIAL_S, _MIN_ROUNDS = 0.05, 3
_WORTH = 0.95  # share of the time that more threads must stay below

RunGemms = Callable[[int], object]
"""Runs the GEMMs once with so many threads."""


def candidates(available: int) -> list[int]:
    """Return the numbers of threads to try: powers of two, and ``available`` itself."""
    powers = [1 << exponent for exponent in range(available.bit_length()) if 1 << exponent <= available]
    return sorted({*powers, available})


def fewest_worth(seconds: Mapping[int, float]) -> int:
    """Return the number of threads, given the time with each: more only where they save 5 % each time."""
    best, *others = sorted(seconds)
    for threads in others:
        if seconds[threads] < _WORTH * seconds[best]:
            best = threads
    return best


def measure(numbers: Sequence[int], trial: RunGemms, clock: Callable[[], float] = time.perf_counter) -> int:
    """Return the number of threads that is worth it.

    They take turns, so that what else the machine does slows all of them; medians are compared.

    Args:
        numbers: candidates.
        trial: the GEMMs to time.
        clock: seconds.
    """
    times: dict[int, list[float]] = {threads: [] for threads in numbers}
    deadline_s = clock() + _TRIAL_S
    for threads in numbers:
        trial(threads)  # starts the threads and touches the memory
    while clock() < deadline_s or len(times[numbers[0]]) < _MIN_ROUNDS:
        for threads in numbers:
            began_s = clock()
            trial(threads)
            times[threads].append(clock() - began_s)
    return fewest_worth({threads: statistics.median(each) for threads, each in times.items()})


def choose_threads(spec: ModelSpec, available: int, *, pairs_rows: bool) -> int:
    """Return the number of threads that decodes one sequence of this model fastest, here and now.

    Args:
        spec: model, for the sizes of its GEMMs.
        available: CPUs of this process.
        pairs_rows: see :func:`.reference.linear`.
    """
    largest = max(2 * _inner(spec), spec.vocab) * spec.hidden
    if available == 1 or not is_worth_splitting(Work(2, largest, 4 * largest)):
        return 1
    numbers = candidates(available)
    workers = {threads: Workers(threads) for threads in numbers if threads > 1}
    gemms = _gemms(spec, max(_MATRIX_BYTES, bytes_worth(available)))

    def trial(threads: int) -> None:
        for x, weight in gemms:
            reference.linear(x, weight, workers=workers.get(threads), pairs_rows=pairs_rows)

    try:
        chosen = measure(numbers, trial)
        log.info("CPU threads: %d of %d, by measurement; --threads sets them", chosen, available)
        return chosen
    finally:
        for pool in workers.values():
            pool.close()


def _inner(spec: ModelSpec) -> int:
    sizes = [ffn.inner for ffn in spec.ffns(DenseSpec)] + [ffn.inner for ffn in spec.ffns(MoeSpec)]
    return max(sizes, default=4 * spec.hidden)


def _gemms(spec: ModelSpec, matrix_bytes: int) -> list[tuple[Array, PackedMatrix]]:
    """Return inputs and weights as of the MLPs of some layers, each matrix of ``matrix_bytes`` at most."""
    inner = _inner(spec)
    gemms, size = list[tuple[Array, PackedMatrix]](), 0
    while size < _TRIAL_BYTES:
        for outputs, inputs in ((2 * inner, spec.hidden), (spec.hidden, inner)):
            outputs = max(1, min(outputs, matrix_bytes // (4 * inputs)))
            tiles = np.full(packed_shape(outputs, inputs), np.float32(0.5))
            gemms.append((np.full((1, inputs), np.float32(0.5)), PackedMatrix(tiles, outputs)))
            size += tiles.nbytes
    return gemms
