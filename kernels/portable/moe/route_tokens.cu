// route_tokens.cu: the experts of up to 64 tokens, their weights, and the order of the pairs, from logits to lists, by
// one kernel; router_logits.cu, choose_experts.cu and sort_pairs.cu do the same for more, with the same bits.
//
//   x    : [N, D] bf16, row-major     W : [E, D] bf16, or float32 (_f32), row-major     gate : [D] as W, or null
//   out  : [ranges, N, stride] float32: sums over 256 columns each     gates : [N] float32, logits of gate
//   experts, weights : of expert_choice.cuh     positions, rows, tiles, tile_count, loads, calls : of pair_order.cuh
//   arrivals : [1 + token tiles] uint32, zero before and after
//   math : bf16 operands, float32 sums of 256 columns, added in their order; choice and order exact
//   grid : (token tiles of 8, row tiles of 64, ranges of 256 columns)     block: (256, 1, 1)
//   shared: four stages of (9 KB, _f32 25 KB), and then what the last blocks keep, whichever is more
//   needs: N <= 64, D % 8 == 0, stride % 4 == 0, E <= 128 (_4), 256 (_8), 512 (_16), K <= min(E, 32), groups <= 32 of
//          E / groups >= 2 experts (ops/cuda/moe/token_router.py checks)
//   check: tests/gpu/moe/test_router.py against float64 and ops/reference/moe.py
#include "expert_choice.cuh"
#include "pair_order.cuh"
#include "router_tile.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROUTE_THREADS, kTokens = 8, kStages = kRangeColumns / kColumns, kAtOnce = 8;
static_assert(kThreads / 32 == kTokens, "a warp chooses for a token");

struct RouteArgs {
  RouterArgs router;
  ChoiceArgs choice;
  SortArgs order;
  float* gates;
  unsigned* arrivals;
};

// Whether this is the last of `blocks` to arrive: it then sees what all have written.
__device__ __forceinline__ bool is_last(unsigned* arrivals, unsigned blocks) {
  __syncthreads();
  unsigned before = 0;
  if (threadIdx.x == 0) {
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrivals) : "memory");
    if (before == blocks - 1) *arrivals = 0;
  }
  return __syncthreads_or(threadIdx.x == 0 && before == blocks - 1);
}

// logits[token][row] = the sum over ranges, in their order, plus the bias; many loads are in flight at once.
__device__ __forceinline__ void add_ranges(const RouteArgs& a, float* logits, int first, int tokens) {
  const RouterArgs& r = a.router;
  const int quads = r.stride / 4, ranges = gridDim.z;
  const long long distance = static_cast<long long>(r.tokens) * r.stride;
  for (int i = threadIdx.x; i < tokens * quads; i += kThreads) {
    const int row = i % quads * 4, token = i / quads;
    const float* from = r.out + (first + token) * r.stride + row;
    float sums[4] = {};
    for (int range = 0; range < ranges; range += kAtOnce) {
      float4 parts[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; j++) {
        if (range + j < ranges) parts[j] = __ldcg(reinterpret_cast<const float4*>(from + (range + j) * distance));
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; j++) {
        if (range + j >= ranges) continue;
        sums[0] += parts[j].x, sums[1] += parts[j].y, sums[2] += parts[j].z, sums[3] += parts[j].w;
      }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (row + j < r.experts) logits[token * r.stride + row + j] = biased(a.choice, sums[j], row + j);
      if (row + j == r.experts && r.gate) a.gates[first + token] = sums[j];
    }
  }
}

template <int kOwn, class Router>
__device__ __forceinline__ void route_tokens(const RouteArgs& a) {
  using Tile = RouterTile<kTokens, Router, kThreads>;
  extern __shared__ __align__(128) unsigned char shared[];
  const RouterArgs& r = a.router;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, count = r.experts, column = blockIdx.z * kRangeColumns;

  // 1. This block's sums; the weights come while the kernel before still runs.
  const uint32_t stages = shared_address(shared);
  const Tile tile{r};
  pdl_launch_dependents();
#pragma unroll
  for (int i = 0; i < kStages; i++) tile.copy_weights(stages + i * Tile::kStageBytes, column + i * kColumns);
  pdl_wait();
#pragma unroll
  for (int i = 0; i < kStages; i++) tile.copy_tokens(stages + i * Tile::kStageBytes, column + i * kColumns);
  copies_commit();
  copies_wait<0>();
  __syncthreads();
  if (warp < kMultiplyWarps) {
    float sums[1][4] = {};
#pragma unroll
    for (int i = 0; i < kStages; i++) tile.multiply(sums, stages + i * Tile::kStageBytes);
    tile.store(sums, blockIdx.z);
  }

  // 2. The last block of a token tile adds the ranges, and a warp a token chooses.
  if (!is_last(a.arrivals + 1 + blockIdx.x, gridDim.y * gridDim.z)) return;
  float* const logits = reinterpret_cast<float*>(shared);
  float* const values = logits + kTokens * r.stride;
  unsigned* const bits = reinterpret_cast<unsigned*>(values + (a.choice.groups > 1 ? kTokens * count : 0));
  const FewPairs pairs = {bits, reinterpret_cast<int*>(bits + 3 * count + kThreads / 32), bits + 2 * count,
                          bits + 3 * count};
  const int first = blockIdx.x * kTokens, tokens = min(kTokens, r.tokens - first);
  for (int i = threadIdx.x; i < 2 * count; i += kThreads) pairs.tokens[i] = 0;
  add_ranges(a, logits, first, tokens);
  __syncthreads();
  if (warp < tokens) {
    const int own = choose<kOwn>(a.choice, first + warp, logits + warp * r.stride, values + warp * count);
    if (gridDim.x == 1 && lane < a.order.chosen) pairs.add(a.order, count, warp * a.order.chosen + lane, own);
  }

  // 3. The last block of all sorts.
  if (gridDim.x > 1) {
    if (!is_last(a.arrivals, gridDim.x)) return;
    for (int i = threadIdx.x; i < a.order.pairs; i += kThreads)
      pairs.add(a.order, count, i, __ldcg(a.order.experts + i));
  }
  __syncthreads();
  pairs.sort<kThreads>(a.order, count);
}

#define ROUTE_TOKENS(name, own, router)                                                                             \
  extern "C" __global__ void __launch_bounds__(kThreads) route_tokens_##name(const __grid_constant__ RouteArgs a) { \
    route_tokens<own, router>(a);                                                                                   \
  }
ROUTE_TOKENS(4, 4, Bf16Router)
ROUTE_TOKENS(8, 8, Bf16Router)
ROUTE_TOKENS(16, 16, Bf16Router)
ROUTE_TOKENS(f32_4, 4, Float32Router)
ROUTE_TOKENS(f32_8, 8, Float32Router)
ROUTE_TOKENS(f32_16, 16, Float32Router)
