"""Penalties, bias and mask of the sampling kernel's source, compiled for one thread, against the reference.

``tests/gpu/sampling`` runs the kernels themselves; this part needs no GPU.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sampling_rows import batch

from wisp_runtime.ops.cuda.device.manifest import constants
from wisp_runtime.ops.reference.sampling import _adjust

ROOT = Path(__file__).resolve().parents[4]
SUPPORT = ROOT / "tests/runtime/support"
NAMES = ("sampling_candidates", "sampling_bins", "sampling_token_bits")

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the source is compiled by g++")

SOURCE = """
#include "one_thread_cuda.h"
#include "sample_argmax.cu"

// Adjust row `index`; returns 0 where the row needs no adjusted copy.
extern "C" int adjust_row(const Row* row, const Entry* entries, const uint32_t* masks, const uint32_t* seen,
                          const float* logits, float* adjusted, int index, int vocab) {
  Arena arena{};
  arena.entries = entries, arena.masks = masks, arena.seen = seen;
  arena.adjusted = adjusted, arena.vocab = vocab;
  Task task{};
  task.row = *row, task.logits = logits + int64_t(index) * vocab, task.index = index, task.vocab = vocab;
  if (!task.is_adjusted()) return 0;
  adjust(arena, task, {0, (vocab + 3) / 4});
  return 1;
}
"""

ROW = np.dtype(
    [
        *(("temperature", "f4"), ("top_k", "i4"), ("top_p", "f4"), ("min_p", "f4")),
        *(("seed", "u8"), ("step", "u8"), ("presence", "f4"), ("frequency", "f4")),
        *(("count_start", "i4"), ("count_stop", "i4"), ("bias_start", "i4"), ("bias_stop", "i4")),
        *(("mask_row", "i4"), ("repetition", "f4")),
    ]
)


@pytest.fixture(scope="module")
def adjust_row(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampling")
    (folder / "source.cpp").write_text(SOURCE)
    (folder / "sync").mkdir()
    (folder / "sync/pdl.cuh").write_text("#pragma once\n")  # what it declares, the header for one thread has
    defines = [f"-DWISP_{name.upper()}={constants()[name]}" for name in NAMES]
    folders = [folder, SUPPORT, ROOT / "kernels/portable/sampling", ROOT / "kernels/include"]
    command = ["g++", "-std=c++20", "-O1", "-w", "-fpermissive", "-fPIC", "-shared", "-ffp-contract=off"]
    command += [*defines, "-DWISP_SAMPLING_THREADS=1", *(f"-I{each}" for each in folders)]
    subprocess.run([*command, folder / "source.cpp", "-o", folder / "library.so"], check=True)
    return ctypes.CDLL(str(folder / "library.so")).adjust_row


def address(array):
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize("vocab", [33, 1001])
def test_a_row_is_adjusted_as_by_the_reference(adjust_row, vocab):
    random, words = np.random.default_rng(vocab), -(-vocab // 32)
    logits = (4 * random.standard_normal((2, vocab))).astype(np.float32)
    logits[1, 5], logits[1, 6], logits[1, 7] = 0, -np.inf, np.nan
    seen, masks = (random.integers(0, 1 << 32, (2, words)).astype(np.uint32) for _ in range(2))
    ids = random.permutation(vocab)[:20].astype(np.int32)
    counts, biases = random.integers(1, 9, 10).astype(np.int32), random.standard_normal(10).astype(np.float32)
    entries = np.ascontiguousarray(np.stack([ids, np.concatenate([counts, biases.view(np.int32)])], axis=1))
    for case in range(16):
        repetition = np.float32(1.3 if case & 1 else 1)
        presence, frequency = (0.5, 0.1) if case & 2 else (0.0, 0.0)
        biased, masked = 10 * (case >> 2 & 1), case >> 3 & 1
        sampling = batch(
            2,
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            seen=seen,
            bitmask=masks if masked else None,
            **{"count_starts": np.array([0, 0, 10]), "count_ids": ids[:10], "counts": counts},
            **{
                "bias_starts": np.array([0, 0, biased]),
                "bias_ids": ids[10:][:biased],
                "biases": biases[:biased],
            },
        )
        row = np.zeros(1, ROW)
        row["presence"], row["frequency"], row["repetition"] = presence, frequency, repetition
        row["count_stop"], row["bias_start"], row["bias_stop"] = 10, 10, 10 + biased
        row["mask_row"] = 1 if masked else -1
        adjusted = np.full((2, vocab), 7, np.float32)
        arrays = (row, entries, masks, seen, logits, adjusted)
        is_adjusted = adjust_row(*map(address, arrays), 1, vocab)
        assert bool(is_adjusted) == (case > 0)
        if is_adjusted:
            expect = _adjust(logits[1], sampling, 1)
            np.testing.assert_allclose(adjusted[1], expect, rtol=2e-7)  # penalties round once, not twice
        assert (adjusted[0] == 7).all()
