// router_logits.cu: logits = x W^T of a mixture's router, and of a shared expert's gate, of many tokens.
//
//   x    : [N, D] bf16, row-major     W : [E, D] bf16, or float32 (_f32), row-major     gate : [D] as W, or null
//   out  : [N, stride] float32: E logits, then the gate's
//   math : bf16 operands, float32 sums of 256 columns, added in order: the same bits as route_tokens.cu's
//   grid : (token tiles of 64, row tiles of 64, 1)     block: (128, 1, 1)
//   shared: four stages of (8 KB, _f32 24 KB, + 8 KB)
//   needs: D % 8 == 0, 16-byte aligned rows (ops/cuda/moe/router.py checks)
//   check: tests/gpu/moe/test_router.py against float64, relative 1e-5 of the terms
#include "router_tile.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROUTER_THREADS, kTokens = 64, kStages = 4, kAhead = kStages - 1;

template <class Router>
__device__ __forceinline__ void multiply_tile(const RouterArgs& a) {
  using Tile = RouterTile<kTokens, Router, kThreads>;
  constexpr int kSteps = kRangeColumns / kColumns;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t ring = shared_address(shared);
  const Tile tile{a};
  const int end = (a.columns + kRangeColumns - 1) / kRangeColumns * kSteps;
  auto copy = [&](int step) {
    const uint32_t stage = ring + step % kStages * Tile::kStageBytes;
    if (step < end) tile.copy_weights(stage, step * kColumns), tile.copy_tokens(stage, step * kColumns);
    copies_commit();
  };
  pdl_launch_dependents();
  pdl_wait();

  // A stage is refilled after the barrier behind which all have multiplied it.
#pragma unroll
  for (int i = 0; i < kAhead; i++) copy(i);
  float sums[Tile::kN][4] = {}, range[Tile::kN][4] = {};
#pragma unroll 1
  for (int step = 0; step < end; step++) {
    copies_wait<kAhead - 1>();
    __syncthreads();
    copy(step + kAhead);
    tile.multiply(range, ring + step % kStages * Tile::kStageBytes);
    if (step % kSteps < kSteps - 1) continue;
#pragma unroll
    for (int i = 0; i < Tile::kN * 4; i++) {
      sums[i / 4][i % 4] += range[i / 4][i % 4];
      range[i / 4][i % 4] = 0.f;
    }
  }
  tile.store(sums, 0);
}

extern "C" __global__ void __launch_bounds__(kThreads) router_logits(const __grid_constant__ RouterArgs a) {
  multiply_tile<Bf16Router>(a);
}
extern "C" __global__ void __launch_bounds__(kThreads) router_logits_f32(const __grid_constant__ RouterArgs a) {
  multiply_tile<Float32Router>(a);
}
