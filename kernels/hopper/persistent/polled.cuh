// polled.cuh: waits without a limit (hang_detector.cuh says why), and floats that come from other blocks without a
// barrier: each shows by itself whether it has been written.
#pragma once

#include "model.cuh"

template <class Ready>
__device__ __forceinline__ void spin_until(Ready ready) {
  while (!ready()) {
  }
}

__device__ __forceinline__ bool is_written(float& value, const float* from) {
  unsigned bits;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(from) : "memory");
  value = __uint_as_float(bits);
  return bits != kNotYet;
}

__device__ __forceinline__ void store_polled(float* to, unsigned bits) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(bits) : "memory");
}
