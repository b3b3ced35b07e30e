// sort_pairs.cu: sort the pairs of many tokens and their experts by expert, and list the tiles of the experts' GEMMs.
//
//   experts   : [N, K] int32, of each token different ones
//   positions : [N, K] int32: of each pair in the sorted order, which keeps that of tokens
//   rows      : [N K] int32: the token at each position
//   tiles     : [at most min(N K, E + N K / tile tokens)] int4: expert, first position, last + 1, 0; in order
//   tile_count: [1] int32
//   loads, calls : [E] int64: pairs of each expert are added, and 1 if there are any; or null
//   math : exact, the same order in every run
//   grid : (E, 1, 1), an expert a block     block: (512, 1, 1)     shared: 4 (E + 64) bytes
//   needs: E <= 512, N K < 2^31; experts and positions 16-byte aligned (ops/cuda/moe/experts.py checks)
//   check: tests/gpu/moe/test_sort_pairs.py against a stable sort, equal
#include "pair_order.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_SORT_THREADS, kWarps = kThreads / 32, kOwn = 4;

// Four experts of pairs from `first` on; -1 past the last.
__device__ __forceinline__ void load_experts(const SortArgs& a, int first, int (&experts)[kOwn]) {
  if (first + kOwn <= a.pairs) {
    const int4 v = *reinterpret_cast<const int4*>(a.experts + first);
    experts[0] = v.x, experts[1] = v.y, experts[2] = v.z, experts[3] = v.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < kOwn; i++) experts[i] = first + i < a.pairs ? a.experts[first + i] : -1;
}

extern "C" __global__ void __launch_bounds__(kThreads) sort_pairs(const __grid_constant__ SortArgs a) {
  extern __shared__ unsigned counts[];  // [E], then sums of warps: [2][kWarps]
  const int expert = blockIdx.x, count = gridDim.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int* const sums = reinterpret_cast<int*>(counts + count);
  pdl_launch_dependents();
  pdl_wait();

  // 1. Pairs of each expert.
  for (int i = threadIdx.x; i < count; i += kThreads) counts[i] = 0;
  __syncthreads();
  for (int first = threadIdx.x * kOwn; first < a.pairs; first += kThreads * kOwn) {
    int experts[kOwn];
    load_experts(a, first, experts);
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      if (experts[i] >= 0) atomicAdd(counts + experts[i], 1u);
    }
  }
  __syncthreads();

  // 2. Positions and tiles of the experts before this one: threads have one each.
  const int own = static_cast<int>(counts[expert]);
  const int before = static_cast<int>(threadIdx.x) < expert ? static_cast<int>(counts[threadIdx.x]) : 0;
  const int all = warp_total(before), tiles = warp_total((before + a.tile_tokens - 1) / a.tile_tokens);
  if (lane == 0) sums[warp] = all, sums[kWarps + warp] = tiles;
  __syncthreads();
  int begin = warp_total(lane < kWarps ? sums[lane] : 0);
  const int first_tile = warp_total(lane < kWarps ? sums[kWarps + lane] : 0);
  const int own_tiles = (own + a.tile_tokens - 1) / a.tile_tokens, end = begin + own;
  for (int i = threadIdx.x; i < own_tiles; i += kThreads) {
    const int from = begin + i * a.tile_tokens;
    a.tiles[first_tile + i] = make_int4(expert, from, min(end, from + a.tile_tokens), 0);
  }
  if (threadIdx.x == 0) {
    if (expert == count - 1) *a.tile_count = first_tile + own_tiles;
    if (a.loads) a.loads[expert] += own, a.calls[expert] += own > 0;
  }
  if (own == 0) return;
  __syncthreads();

  // 3. This expert's pairs, in order.
  int parity = 0;
  for (int start = 0; start < a.pairs; start += kThreads * kOwn, parity ^= 1) {
    const int first = start + threadIdx.x * kOwn;
    int experts[kOwn], mine = 0;
    load_experts(a, first, experts);
#pragma unroll
    for (int i = 0; i < kOwn; i++) mine += experts[i] == expert;
    const int up_to = sum_up_to(mine);
    int* const totals = sums + parity * kWarps;
    if (lane == 31) totals[warp] = up_to;
    __syncthreads();
    const int of_warp = lane < kWarps ? totals[lane] : 0;
    int at = begin + up_to - mine + warp_total(lane < warp ? of_warp : 0);
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      if (experts[i] != expert) continue;
      a.positions[first + i] = at;
      a.rows[at++] = (first + i) / a.chosen;
    }
    begin += warp_total(of_warp);
  }
}
