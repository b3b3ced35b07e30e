// async_copy.cuh: asynchronous copies from global to shared memory, cp.async (sm_80 and newer).
#pragma once

#include <cstdint>

#include "copy/shared_address.cuh"

// Copy 16 bytes, past the L1; with `exists` false nothing is read and 16 zero bytes are written. Both aligned to 16.
__device__ __forceinline__ void copy16_async(uint32_t shared, const void* global, bool exists) {
  const int bytes = exists ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

// The same, and the L2 fetches the 128 bytes around them.
__device__ __forceinline__ void copy16_async_of_line(uint32_t shared, const void* global, bool exists) {
  const int bytes = exists ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
               : "memory");
}

// Close this thread's group of copies; a group may be empty.
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait until all but the newest kPending groups of this thread have arrived. Other threads see them after a barrier.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
