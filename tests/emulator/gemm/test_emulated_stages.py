"""Copies over shared memory while loads of it may still be on their way, on the emulated GPU."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from emulated_kernel import DidNotEnd, Emulated, needs_compiler

pytestmark = needs_compiler
TURNS, LANES = 4, 32

KERNEL = """// Warp 1 copies to a stage, warp 0 loads from it.
#include "copy/tma.cuh"
#include "sync/mbarrier.cuh"

struct Args {
  const unsigned* from;
  unsigned* to;
};

extern "C" __global__ void __launch_bounds__(64) one_stage(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t barriers[2];
  const uint32_t stage = shared_address(shared), full = shared_address(barriers), empty = full + 8;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) mbarrier_init(full, 1), mbarrier_init(empty, 1), mbarrier_init_fence();
  __syncthreads();
  for (int turn = 0; turn < 4; turn++) {
    if (threadIdx.x >= 32) {
      mbarrier_wait(empty, turn % 2 ^ 1);
      if (lane > 0) continue;
      mbarrier_arrive_expect(full, 128);
      bulk_load(stage, args.from + turn * 32, 128, full, kEvictNormal);
    } else {
      mbarrier_wait(full, turn % 2);
      uint32_t word;
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(stage + lane * 4) : "memory");
      RELEASE
      args.to[turn * 32 + lane] = word;
    }
  }
}
"""


class Args(ctypes.Structure):
    _fields_ = (("from_", ctypes.c_void_p), ("to", ctypes.c_void_p))


@pytest.mark.parametrize(
    ("release", "is_finished"),
    [
        ("__syncwarp(); if (lane == 0) mbarrier_arrive(empty);", False),
        ("finish_shared_loads(); if (lane == 0) mbarrier_arrive(empty);", True),
        ("__syncwarp(); if (lane == 0) mbarrier_arrive_after(empty, word);", True),
    ],
)
def test_a_copy_to_what_may_still_be_loaded_is_a_fault(
    release: str, is_finished: bool, tmp_path: Path
) -> None:
    source = tmp_path / "one_stage.cu"
    source.write_text(KERNEL.replace("RELEASE", release))
    there, here = np.arange(TURNS * LANES, dtype=np.uint32), np.zeros(TURNS * LANES, np.uint32)
    args = Args(there.ctypes.data, here.ctypes.data)

    def run(seed: int) -> None:
        Emulated(source, []).launch("one_stage", [args], blocks=1, threads=64, seed=seed)

    for seed in range(8):
        if is_finished:
            run(seed)
            assert np.array_equal(here, there)
        else:
            with pytest.raises(DidNotEnd, match="may still be on its way"):
                run(seed)
