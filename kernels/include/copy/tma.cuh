// tma.cuh: bulk copies from global to shared memory, counted in bytes on an mbarrier (sm_90 and above).
//
// One thread issues a copy, the copy engine executes it. Shared addresses, barriers included, are 32-bit
// (shared_address).
#pragma once

#include <cstdint>

// L2 eviction policies: createpolicy's encodings, as in CUTLASS.
constexpr uint64_t kEvictNormal = 0x1000000000000000ull;
constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;

// Copy `bytes` of contiguous memory; both addresses and the size are multiples of 16.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                          uint64_t eviction) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(eviction)
      : "memory");
}

// Copy a box of a tensor map (a __grid_constant__ CUtensorMap) from element column, row on. Outside the map: zeros,
// whose bytes count too. With the 128-byte swizzle `to` is a multiple of 1,024.
__device__ __forceinline__ void tma_load_2d(uint32_t to, const void* map, int column, int row, uint32_t barrier,
                                            uint64_t eviction) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "l"(eviction)
      : "memory");
}

// The same to the same offset in both blocks of a cluster (multicast), counted on the barrier of each.
__device__ __forceinline__ void tma_load_2d_both(uint32_t to, const void* map, int column, int row, uint32_t barrier,
                                                 uint64_t eviction) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "h"(static_cast<uint16_t>(3)), "l"(eviction)
      : "memory");
}

// Fetch a tensor map ahead of its first use.
__device__ __forceinline__ void tma_prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Order this thread's ordinary shared-memory accesses before those of the copy engine or the tensor cores.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same of all memory: what other threads have stored and this one has seen, before its copies.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// A warp: wait for its loads from shared memory, before it gives what they read back to the copy engine.
// mbarrier_arrive_after takes less time.
__device__ __forceinline__ void finish_shared_loads() {
  fence_async_shared();
  __syncwarp();
}
