// router_tile.cuh: 64 rows of a mixture's router times the tokens of a tile, float32, on mma.sync. Rows are the
// experts', and one more of a shared expert's gate; W float32 is three bf16, without loss. router_logits.cu and
// route_tokens.cu share it.
#pragma once

#include "copy/async_copy.cuh"
#include "math/bf16.cuh"
#include "mma/warp_mma.cuh"

constexpr int kRows = 64, kColumns = 64, kRangeColumns = WISP_ROUTER_RANGE_COLUMNS;
constexpr int kRowBytes = 128, kPlaneBytes = kRows * kRowBytes, kMultiplyWarps = kRows / 16;

struct RouterArgs {
  const bf16* x;
  const void* weight;  // [E, D]
  const void* gate;    // [D] of the same dtype, row E, or null
  float* out;          // [ranges, N, stride]
  long long x_stride;  // elements
  int tokens, experts, columns, stride;
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

// The tile of a block: tokens of blockIdx.x, rows of blockIdx.y. Threads copy chunk threadIdx.x % 8 of 64 columns.
template <int kTokens, class Router, int kThreads>
struct RouterTile {
  static constexpr int kStageBytes = Router::kPlanes * kPlaneBytes + kTokens * kRowBytes, kN = kTokens / 8;
  const RouterArgs& a;

  // Copy 64 columns of the weights from `column` on, zeros outside.
  __device__ void copy_weights(uint32_t stage, int column) const {
    const int chunk = threadIdx.x % 8, at = column + chunk * 8;
#pragma unroll
    for (int row = threadIdx.x / 8; row < kRows; row += kThreads / 8) {
      const int expert = blockIdx.y * kRows + row;
      const bool is_gate = expert == a.experts, has = (expert < a.experts || (is_gate && a.gate)) && at < a.columns;
      const void* from = has && is_gate ? a.gate : a.weight;
      const long long element = !has ? 0 : is_gate ? at : static_cast<long long>(expert) * a.columns + at;
      Router::copy(stage + row * kRowBytes + (chunk ^ row % 8) * 16, from, element, has);
    }
  }

  // The same of the tokens.
  __device__ void copy_tokens(uint32_t stage, int column) const {
    const int chunk = threadIdx.x % 8, at = column + chunk * 8;
    const uint32_t tokens = stage + Router::kPlanes * kPlaneBytes;
#pragma unroll
    for (int row = threadIdx.x / 8; row < kTokens; row += kThreads / 8) {
      const int token = blockIdx.x * kTokens + row;
      const bool has = token < a.tokens && at < a.columns;
      copy16_async(tokens + row * kRowBytes + (chunk ^ row % 8) * 16, a.x + (has ? token * a.x_stride + at : 0), has);
    }
  }

  // sums += 16 rows, those of one of kMultiplyWarps warps, times the tokens, of a stage's columns.
  __device__ void multiply(float (&sums)[kN][4], uint32_t stage) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t rows = stage + (warp * 16 + lane % 16) * kRowBytes;
    const uint32_t tokens = stage + Router::kPlanes * kPlaneBytes + lane % 8 * kRowBytes;
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {  // of steps of 16 columns
      uint32_t w[2][Router::kPlanes][4];
#pragma unroll
      for (int i = 0; i < 2 * Router::kPlanes; i++) {
        const int step = pair * 2 + i % 2;
        load_matrices(w[i % 2][i / 2], rows + i / 2 * kPlaneBytes + ((2 * step + lane / 16) ^ lane % 8) * 16);
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

  // Store the warp's sums into out[range].
  __device__ void store(const float (&sums)[kN][4], int range) const {
    const int lane = threadIdx.x % 32, first = blockIdx.y * kRows + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kN * 4; i++) {
      const int token = blockIdx.x * kTokens + i / 4 * 8 + lane % 4 * 2 + i % 2, row = first + i / 2 % 2 * 8;
      if (token >= a.tokens || row >= a.experts + (a.gate != nullptr)) continue;
      a.out[(static_cast<long long>(range) * a.tokens + token) * a.stride + row] = sums[i / 4][i % 4];
    }
  }
};
