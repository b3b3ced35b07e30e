// router_logits.cu: logits = x W^T of a mixture's router, float32, on mma.sync; W float32 as three bf16, without loss.
//
//   x    : [N, D] bf16, row-major     W : [E, D] bf16, or float32 (_f32), row-major
//   out  : [ranges, N, E] float32: sums over 256 columns each, which choose_experts.cu adds; or [1, N, E], all added
//   math : bf16 operands, float32 sums of 256 columns, added in order: the same bits however many ranges are stored
//   grid : (token tiles of 8 or 64, expert tiles of 64, ranges stored)     block: (128, 1, 1)
//   shared: four stages of (8 KB, _f32 24 KB, + tokens x 128 B)
//   needs: D % 8 == 0, 16-byte aligned rows (ops/cuda/moe/router.py checks)
//   check: tests/gpu/moe/test_router.py against float64, relative 1e-5 of the terms
#include "copy/async_copy.cuh"
#include "math/bf16.cuh"
#include "mma/warp_mma.cuh"
#include "sync/pdl.cuh"

constexpr int kThreads = WISP_ROUTER_THREADS, kExperts = 64, kColumns = 64, kRangeColumns = WISP_ROUTER_RANGE_COLUMNS;
constexpr int kRowBytes = 128, kPlaneBytes = kExperts * kRowBytes, kStages = 4, kAhead = kStages - 1;

struct RouterArgs {
  const bf16* x;
  const void* weight;
  float* out;
  long long x_stride;  // elements
  int tokens, experts, columns;
};

// Weights as the tile's k-th 64 columns, in kPlanes planes of bf16 that add up to them.
struct Bf16Router {
  static constexpr int kPlanes = 1;
  __device__ static void copy(uint32_t to, const void* weight, long long element, bool has) {
    copy16_async(to, has ? static_cast<const bf16*>(weight) + element : weight, has);
  }
};

struct Float32Router {
  static constexpr int kPlanes = 3;
  __device__ static void copy(uint32_t to, const void* weight, long long element, bool has) {
    float rest[8] = {};
    if (has) load8(static_cast<const float*>(weight) + element, rest);
#pragma unroll
    for (int plane = 0; plane < kPlanes; plane++) {
      const uint4 part = pack8(rest);
      float taken[8];
      unpack8(part, taken);
#pragma unroll
      for (int i = 0; i < 8; i++) rest[i] -= taken[i];
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + plane * kPlaneBytes), "r"(part.x), "r"(part.y),
                   "r"(part.z), "r"(part.w)
                   : "memory");
    }
  }
};

template <int kTokens, class Router>
struct RouterTile {
  static constexpr int kStageBytes = Router::kPlanes * kPlaneBytes + kTokens * kRowBytes, kN = kTokens / 8;
  const RouterArgs& a;

  // Copy 64 columns from `column` on, zeros outside. Threads have chunk threadIdx.x % 8 of every sixteenth row.
  __device__ void copy(uint32_t stage, int column) const {
    const int chunk = threadIdx.x % 8, at = column + chunk * 8;
    const uint32_t tokens = stage + Router::kPlanes * kPlaneBytes;
#pragma unroll
    for (int row = threadIdx.x / 8; row < kExperts; row += kThreads / 8) {
      const int expert = blockIdx.y * kExperts + row;
      const bool has = expert < a.experts && at < a.columns;
      const long long element = has ? static_cast<long long>(expert) * a.columns + at : 0;
      Router::copy(stage + row * kRowBytes + (chunk ^ row % 8) * 16, a.weight, element, has);
    }
#pragma unroll
    for (int row = threadIdx.x / 8; row < kTokens; row += kThreads / 8) {
      const int token = blockIdx.x * kTokens + row;
      const bool has = token < a.tokens && at < a.columns;
      copy16_async(tokens + row * kRowBytes + (chunk ^ row % 8) * 16, a.x + (has ? token * a.x_stride + at : 0), has);
    }
  }

  // sums += the warp's 16 experts times the tokens, of a stage's columns.
  __device__ void multiply(float (&sums)[kN][4], uint32_t stage) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t experts = stage + (warp * 16 + lane % 16) * kRowBytes;
    const uint32_t tokens = stage + Router::kPlanes * kPlaneBytes + lane % 8 * kRowBytes;
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {  // of steps of 16 columns
      uint32_t w[2][Router::kPlanes][4];
#pragma unroll
      for (int i = 0; i < 2 * Router::kPlanes; i++) {
        const int step = pair * 2 + i % 2;
        load_matrices(w[i % 2][i / 2], experts + i / 2 * kPlaneBytes + ((2 * step + lane / 16) ^ lane % 8) * 16);
      }
#pragma unroll
      for (int n = 0; n < kN; n++) {
        uint32_t t[4];
        load_matrices(t, tokens + n * 8 * kRowBytes + ((4 * pair + lane / 8) ^ lane % 8) * 16);
#pragma unroll
        for (int i = 0; i < 2 * Router::kPlanes; i++) mma_16x8x16(sums[n], w[i % 2][i / 2], t + i % 2 * 2);
      }
    }
  }

  __device__ void store(const float (&sums)[kN][4]) const {
    const int lane = threadIdx.x % 32, expert = blockIdx.y * kExperts + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kN * 4; i++) {
      const int token = blockIdx.x * kTokens + i / 4 * 8 + lane % 4 * 2 + i % 2, own = expert + i / 2 % 2 * 8;
      if (token >= a.tokens || own >= a.experts) continue;
      a.out[(static_cast<long long>(blockIdx.z) * a.tokens + token) * a.experts + own] = sums[i / 4][i % 4];
    }
  }
};

template <int kTokens, class Router>
__device__ __forceinline__ void router_logits(const RouterArgs& a) {
  using Tile = RouterTile<kTokens, Router>;
  constexpr int kSteps = kRangeColumns / kColumns;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t ring = shared_address(shared);
  const Tile tile{a};
  const int ranges = (a.columns + kRangeColumns - 1) / kRangeColumns;
  const int first = ranges * blockIdx.z / gridDim.z * kSteps, end = ranges * (blockIdx.z + 1) / gridDim.z * kSteps;
  pdl_launch_dependents();
  pdl_wait();

  // A stage is refilled after the barrier behind which all have multiplied it.
#pragma unroll
  for (int i = 0; i < kAhead; i++) {
    if (first + i < end) tile.copy(ring + i * Tile::kStageBytes, (first + i) * kColumns);
    copies_commit();
  }
  float sums[Tile::kN][4] = {}, range[Tile::kN][4] = {};
#pragma unroll 1
  for (int step = first; step < end; step++) {
    copies_wait<kAhead - 1>();
    __syncthreads();
    const int next = step + kAhead;
    if (next < end) tile.copy(ring + (next - first) % kStages * Tile::kStageBytes, next * kColumns);
    copies_commit();
    tile.multiply(range, ring + (step - first) % kStages * Tile::kStageBytes);
    if (step % kSteps < kSteps - 1) continue;
#pragma unroll
    for (int i = 0; i < Tile::kN * 4; i++) {
      sums[i / 4][i % 4] += range[i / 4][i % 4];
      range[i / 4][i % 4] = 0.f;
    }
  }
  tile.store(sums);
}

#define ROUTER_LOGITS(name, tokens, router)                                                                           \
  extern "C" __global__ void __launch_bounds__(kThreads) router_logits_##name(const __grid_constant__ RouterArgs a) { \
    router_logits<tokens, router>(a);                                                                                 \
  }
ROUTER_LOGITS(n8, 8, Bf16Router)
ROUTER_LOGITS(n64, 64, Bf16Router)
ROUTER_LOGITS(f32_n8, 8, Float32Router)
ROUTER_LOGITS(f32_n64, 64, Float32Router)
