// linear_parts.cuh: add the parts of a tile whose K was cut between thread blocks; nobody waits for anybody.
//
// Each block leaves its float32 sums in global memory, as its registers hold them, and counts itself in. The last one
// adds all parts in the order of K: the same bits whoever is last.
#pragma once

#include "linear_schedule.cuh"

__device__ __forceinline__ void warpgroup_sync(int warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory");
}

// Past L1, which is not coherent.
__device__ __forceinline__ float4 load_l2(const float4* address) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

// How many have counted themselves in; what they wrote before can be read.
__device__ __forceinline__ int counted(const unsigned* arrivals) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(arrivals) : "memory");
  return value;
}

// The same, before this one; what the warpgroup wrote before its barrier can be read by those who come later.
__device__ __forceinline__ int count_in(unsigned* arrivals) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrivals) : "memory");
  return before;
}

// Where the parts of one tile lie, and who has them.
struct LinearParts {
  float4* parts;
  unsigned* arrivals;
  int lane, lanes, first, last, mine, warpgroup, thread;

  __device__ LinearParts(const LinearTile& tile, const LinearArgs& args, int warpgroup) : warpgroup(warpgroup) {
    lanes = args.lanes, mine = quotient(blockIdx.x, lanes), lane = blockIdx.x - mine * lanes;
    // Range r begins at step steps * r / ranges, so step p is in range ((p + 1) * ranges - 1) / steps.
    const int steps = LinearSchedule::line_steps(args), begin = tile.place * args.k_tiles;
    first = quotient((begin + 1) * args.ranges - 1, steps);
    last = quotient((begin + args.k_tiles) * args.ranges - 1, steps);
    parts = reinterpret_cast<float4*>(args.parts);
    arrivals = args.arrivals + (first * lanes + lane) * 2 + warpgroup;
    thread = threadIdx.x % 128;
  }

  // This thread's sums of a range: `count` float4, 128 apart. A block begins at most one cut tile and goes on with at
  // most one: two places.
  __device__ float4* of(int range, int count) const {
    const int place = ((range * lanes + lane) * 2 + (range == first)) * 2 + warpgroup;
    return parts + static_cast<size_t>(place) * count * 128 + thread;
  }
};

// Leave the sums, count in; true in the last. `flag` is the warpgroup's own.
template <int kTokens>
__device__ __forceinline__ bool leave_part(const float (&sums)[kTokens / 2], const LinearParts& at, bool is_kept,
                                           volatile int* flag) {
  constexpr int kVectors = kTokens / 8;
  const int others = at.last - at.first;
  if (kTokens >= 128 && is_kept) {  // worth a look: if all others are there, nobody will read this part
    warpgroup_sync(at.warpgroup);   // everybody has read the flag of the tile before
    if (at.thread == 0) *flag = counted(at.arrivals) == others;
    warpgroup_sync(at.warpgroup);
    if (*flag) return true;
  }
#pragma unroll
  for (int i = 0; i < kVectors; i++) {
    __stcg(at.of(at.mine, kVectors) + i * 128,
           make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
  }
  warpgroup_sync(at.warpgroup);
  if (at.thread == 0) *flag = count_in(at.arrivals) == others;
  warpgroup_sync(at.warpgroup);
  return *flag;
}

// The whole warpgroup calls. Returns true in the one that came last, which then has the sums over all of K.
template <int kTokens>
__device__ __forceinline__ bool join_parts(float (&sums)[kTokens / 2], const LinearTile& tile, const LinearArgs& args,
                                           int warpgroup, volatile int* flag) {
  constexpr int kVectors = kTokens / 8;
  const LinearParts at(tile, args, warpgroup);
  const bool is_kept = at.mine <= at.first + 1;  // the first two may be added either way round
  if (!leave_part<kTokens>(sums, at, is_kept, flag)) return false;
  if (at.thread == 0) *at.arrivals = 0;
  if (!is_kept) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; i++) sums[i] = -0.f;
  }
  // Up to eight loads in flight: of several parts where a thread has few sums, of a piece of one where it has many.
  constexpr int kPiece = kVectors < 8 ? kVectors : kVectors % 8 == 0 ? 8 : 4;
  constexpr int kAtOnce = kVectors < 8 ? 8 / kVectors : 1;
#pragma unroll 1
  for (int range = at.first; range <= at.last; range += kAtOnce) {
#pragma unroll
    for (int begin = 0; begin < kVectors; begin += kPiece) {
      float4 loaded[kAtOnce][kPiece];
#pragma unroll
      for (int j = 0; j < kAtOnce; j++) {
        if (range + j > at.last || (is_kept && range + j == at.mine)) continue;
#pragma unroll
        for (int i = 0; i < kPiece; i++) loaded[j][i] = load_l2(at.of(range + j, kVectors) + (begin + i) * 128);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; j++) {
        if (range + j > at.last || (is_kept && range + j == at.mine)) continue;
#pragma unroll
        for (int i = 0; i < kPiece; i++) {
          float* to = sums + 4 * (begin + i);
          to[0] += loaded[j][i].x, to[1] += loaded[j][i].y, to[2] += loaded[j][i].z, to[3] += loaded[j][i].w;
        }
      }
    }
  }
  return true;
}
