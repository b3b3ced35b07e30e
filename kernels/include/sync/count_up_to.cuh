// count_up_to.cuh: arrival counters of thread blocks, which the last to arrive leaves at zero.
#pragma once

// Count 0, 1 .. limit, 0 and return the count before. Stores that this block made before its last barrier are
// visible to the block that counts next (release, acquire); one fence cheaper than __threadfence() on both sides.
__device__ __forceinline__ unsigned count_up_to(unsigned limit, unsigned* counter) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(limit) : "memory");
  return before;
}
