// linear_pair.cuh: two thread blocks of a cluster share a tile, half of K each, and finish half of its tokens each.
//
// Each pushes the sums of the other's tokens into the other's ring (st.async, counted in bytes by a barrier there: no
// fence, no memory beyond the chip). A pair's tile is the last of its blocks, so the ring is empty once all products
// of all warpgroups are done, which each block tells the other. Own + other's: the same bits in any order.
#pragma once

#include "linear_parts.cuh"
#include "sync/mbarrier.cuh"

// Least tokens of a tile that a pair may share.
constexpr int kLeastPairTokens = WISP_GEMM_MIN_PAIR_TOKENS;

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Every thread of a cluster arrives, after its barriers are initialised, and waits, before it uses the other's. Where
// copies are shared it arrives at the end too, after what it sent there, and waits: nothing must reach a block that has
// ended. A pair needs no such end: each block waits for all that the other sends.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive_last() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ uint32_t shared_of(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ __forceinline__ void mbarrier_arrive_there(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Into the shared memory of another block, whose barrier counts the 16 bytes.
__device__ __forceinline__ void push16(uint32_t to, const float (&v)[4], uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
      : "memory");
}

// Two barriers for what a block hears of the other, each for one phase.
struct Pair {
  uint32_t is_free;   // shared address; every warpgroup of the other has left its ring, and arrives
  uint32_t received;  // of the first warpgroup, the others' follow: one arrives, and bytes
};

// The whole warpgroup calls, after its products. Leaves in sums[0, kTokens / 4) the sums over all of K of this block's
// half of the tokens: the first of rank 0, the second of rank 1.
template <int kTokens>
__device__ __forceinline__ void swap_halves(float (&sums)[kTokens / 2], uint32_t ring, const Pair& pair,
                                            int warpgroup) {
  constexpr int kKept = kTokens / 4;
  const uint32_t rank = cluster_rank(), received = pair.received + warpgroup * 8;
  const int thread = threadIdx.x % 128;
  warpgroup_sync(warpgroup);
  if (thread == 0) {
    mbarrier_arrive_expect(received, kKept * 4 * 128);
    mbarrier_arrive_there(shared_of(pair.is_free, rank ^ 1));
  }
  const uint32_t mine = ring + warpgroup * kKept * 4 * 128 + thread * 16;
  const uint32_t there = shared_of(mine, rank ^ 1), received_there = shared_of(received, rank ^ 1);
  mbarrier_wait(pair.is_free, 0);
#pragma unroll
  for (int i = 0; i < kKept; i += 4) {
    float given[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      given[j] = rank == 0 ? sums[i + j + kKept] : sums[i + j];
      sums[i + j] = rank == 0 ? sums[i + j] : sums[i + j + kKept];
    }
    push16(there + i / 4 * 2048, given, received_there);
  }
  mbarrier_wait(received, 0);
#pragma unroll
  for (int i = 0; i < kKept; i += 4) {
    float v[4];
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(mine + i / 4 * 2048)
                 : "memory");
#pragma unroll
    for (int j = 0; j < 4; j++) sums[i + j] += v[j];
  }
}
