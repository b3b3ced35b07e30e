// split_k.cuh: combine the partial sums of a tile whose K is split between thread blocks, without a block waiting.
//
// Each block stores its float32 sums in global memory, laid out as its registers hold them, and counts its arrival. The
// last one adds all partial sums in the order of K: the same bits whichever is last.
#pragma once

#include "tile_scheduler.cuh"

__device__ __forceinline__ void warpgroup_sync(int warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory");
}

// Load past L1, which is not coherent.
__device__ __forceinline__ float4 load_past_l1(const float4* address) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

// Return how many have arrived; what they wrote before can be read.
__device__ __forceinline__ int arrived_count(const unsigned* arrivals) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(arrivals) : "memory");
  return value;
}

// Arrive and return how many had before; what the warpgroup wrote before its barrier can be read by later arrivals.
__device__ __forceinline__ int arrive(unsigned* arrivals) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrivals) : "memory");
  return before;
}

// The partial sums of one tile: their addresses, and the ranges that contribute.
struct Partials {
  float4* partials;
  unsigned* arrivals;
  int stream, streams, first, last, mine, warpgroup, thread;

  __device__ Partials(const GemmTile& tile, const GemmArgs& args, int warpgroup) : warpgroup(warpgroup) {
    streams = args.streams, mine = quotient(blockIdx.x, streams), stream = blockIdx.x - mine * streams;
    // Range r begins at step steps * r / ranges, so step p is in range ((p + 1) * ranges - 1) / steps.
    const int steps = TileScheduler::stream_steps(args), begin = tile.stream_index * args.k_tiles;
    first = quotient((begin + 1) * args.ranges - 1, steps);
    last = quotient((begin + args.k_tiles) * args.ranges - 1, steps);
    partials = reinterpret_cast<float4*>(args.partials);
    arrivals = args.arrivals + (first * streams + stream) * 2 + warpgroup;
    thread = threadIdx.x % 128;
  }

  // This thread's sums of a range: `count` float4, 128 apart. A block begins at most one split tile and continues at
  // most one: two slots.
  __device__ float4* of(int range, int count) const {
    const int slot = ((range * streams + stream) * 2 + (range == first)) * 2 + warpgroup;
    return partials + static_cast<size_t>(slot) * count * 128 + thread;
  }
};

// Store the sums and arrive; return whether this warpgroup is the last. `flag` is the warpgroup's own.
template <int kTokens>
__device__ __forceinline__ bool store_partial(const float (&sums)[kTokens / 2], const Partials& at, bool is_kept,
                                              volatile int* flag) {
  constexpr int kVectors = kTokens / 8;
  const int others = at.last - at.first;
  if (kTokens >= 128 && is_kept) {  // if all others have arrived, no block will read this partial sum
    warpgroup_sync(at.warpgroup);   // all threads have read the flag of the tile before
    if (at.thread == 0) *flag = arrived_count(at.arrivals) == others;
    warpgroup_sync(at.warpgroup);
    if (*flag) return true;
  }
#pragma unroll
  for (int i = 0; i < kVectors; i++) {
    __stcg(at.of(at.mine, kVectors) + i * 128,
           make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
  }
  warpgroup_sync(at.warpgroup);
  if (at.thread == 0) *flag = arrive(at.arrivals) == others;
  warpgroup_sync(at.warpgroup);
  return *flag;
}

// Called by the whole warpgroup. Returns true in the last to arrive, which then has the sums over all of K.
template <int kTokens>
__device__ __forceinline__ bool combine_partials(float (&sums)[kTokens / 2], const GemmTile& tile, const GemmArgs& args,
                                                 int warpgroup, volatile int* flag) {
  constexpr int kVectors = kTokens / 8;
  const Partials at(tile, args, warpgroup);
  const bool is_kept = at.mine <= at.first + 1;  // the first two may be added in either order
  if (!store_partial<kTokens>(sums, at, is_kept, flag)) return false;
  if (at.thread == 0) *at.arrivals = 0;
  if (!is_kept) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; i++) sums[i] = -0.f;
  }
  // Up to eight loads in flight: of several partial sums where a thread has few values, of a slice of one where many.
  constexpr int kSlice = kVectors < 8 ? kVectors : kVectors % 8 == 0 ? 8 : 4;
  constexpr int kAtOnce = kVectors < 8 ? 8 / kVectors : 1;
#pragma unroll 1
  for (int range = at.first; range <= at.last; range += kAtOnce) {
#pragma unroll
    for (int begin = 0; begin < kVectors; begin += kSlice) {
      float4 loaded[kAtOnce][kSlice];
#pragma unroll
      for (int j = 0; j < kAtOnce; j++) {
        if (range + j > at.last || (is_kept && range + j == at.mine)) continue;
#pragma unroll
        for (int i = 0; i < kSlice; i++) loaded[j][i] = load_past_l1(at.of(range + j, kVectors) + (begin + i) * 128);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; j++) {
        if (range + j > at.last || (is_kept && range + j == at.mine)) continue;
#pragma unroll
        for (int i = 0; i < kSlice; i++) {
          float* to = sums + 4 * (begin + i);
          to[0] += loaded[j][i].x, to[1] += loaded[j][i].y, to[2] += loaded[j][i].z, to[3] += loaded[j][i].w;
        }
      }
    }
  }
  return true;
}
