// cta_pair.cuh: two thread blocks of a cluster share a tile, half of K each, and finish half of its tokens each.
//
// Each pushes the sums of the other's tokens into the other's pipeline memory (st.async, counted in bytes by an
// mbarrier there: no fence, no traffic beyond the chip). A pair's tile is the last of its blocks, so that memory is
// free once all warpgroups have multiplied, which each block signals to the other. Own + peer's: the same bits in
// either order.
#pragma once

#include "split_k.cuh"
#include "sync/mbarrier.cuh"

// Fewest tokens of a tile that a pair may share.
constexpr int kMinPairTokens = WISP_GEMM_MIN_PAIR_TOKENS;

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Every thread of a cluster arrives after its barriers are initialized, and waits before it uses the peer's. Where
// copies are shared it also arrives at the end, after its last copy to the peer, and waits: nothing must reach a block
// that has ended. A pair needs no such end: each block waits for all that the peer sends.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive_last() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Return the address of the same offset in the shared memory of another block of the cluster.
__device__ __forceinline__ uint32_t shared_of(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ __forceinline__ void mbarrier_arrive_remote(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Store 16 bytes in the shared memory of another block, whose barrier counts them.
__device__ __forceinline__ void push16(uint32_t to, const float (&v)[4], uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
      : "memory");
}

// Barriers by which the peer signals a block, each for one phase.
struct CtaPair {
  uint32_t is_free;   // shared address; each warpgroup of the peer arrives when its pipeline memory is free
  uint32_t received;  // of the first warpgroup, the others' follow: one arrival, and bytes
};

// Called by the whole warpgroup after its multiplications. Leaves in sums[0, kTokens / 4) the sums over all of K of
// this block's half of the tokens: the first of rank 0, the second of rank 1.
template <int kTokens>
__device__ __forceinline__ void exchange_halves(float (&sums)[kTokens / 2], uint32_t ring, const CtaPair& pair,
                                                int warpgroup) {
  constexpr int kKept = kTokens / 4;
  const uint32_t rank = cluster_rank(), received = pair.received + warpgroup * 8;
  const int thread = threadIdx.x % 128;
  warpgroup_sync(warpgroup);
  if (thread == 0) {
    mbarrier_arrive_expect(received, kKept * 4 * 128);
    mbarrier_arrive_remote(shared_of(pair.is_free, rank ^ 1));
  }
  const uint32_t mine = ring + warpgroup * kKept * 4 * 128 + thread * 16;
  const uint32_t there = shared_of(mine, rank ^ 1), received_there = shared_of(received, rank ^ 1);
  mbarrier_wait(pair.is_free, 0);
#pragma unroll
  for (int i = 0; i < kKept; i += 4) {
    float sent[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      sent[j] = rank == 0 ? sums[i + j + kKept] : sums[i + j];
      sums[i + j] = rank == 0 ? sums[i + j] : sums[i + j + kKept];
    }
    push16(there + i / 4 * 2048, sent, received_there);
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
