// uniform.cuh: what all lanes of a warp have alike, told so that the compiler knows it (sm_90).
#pragma once

#include <cstdint>

#include "math/reduce.cuh"

template <class T>
__device__ __forceinline__ T uniform(T value) {
  return __shfl_sync(kWholeWarp, value, 0);
}
__device__ __forceinline__ const char* uniform(const char* pointer) {
  return reinterpret_cast<const char*>(uniform(reinterpret_cast<unsigned long long>(pointer)));
}

// Whether this is the lane that issues copies, always the same one. By elect.sync, right before they are issued: from
// threadIdx the compiler does not know that it is one, and makes a loop over lanes of every copy.
__device__ __forceinline__ bool elect_lane() {
  uint32_t is_elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(is_elected));
  return is_elected != 0;
}
