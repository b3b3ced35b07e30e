// linear_mma.cuh: GEMM of tiled weights and tokens on mma.sync, for any GPU from sm_80 on; linear*.cu instantiate it.
//
// A thread block has 128 weight rows (the 16 rows of m16n8k16) and kTokens tokens (its 8 columns). K advances in steps
// of 64 through a cp.async pipeline: weights as they are stored, 128-byte swizzle included, tokens swizzled alike, so
// that ldmatrix has no bank conflicts. Where tiles are few, K is split (split-K), and the last block to arrive adds the
// partial sums.
#pragma once

#include "copy/async_copy.cuh"
#include "math/bf16.cuh"
#include "mma/warp_mma.cuh"
#include "sync/pdl.cuh"

namespace portable {

enum class Store { kPlain, kGated, kFloat32 };

// By value, as ops/cuda/gemm/portable_linear.py fills it.
struct GemmArgs {
  const unsigned char* weight;
  const bf16* bias;  // [rows] in the weight's row order, or null
  void* out;
  float4* partials;    // [tiles, splits of a tile, sums of a thread / 4, kGemmThreads]
  unsigned* arrivals;  // [tiles], zero before and after
  long long x_stride;  // elements
  int rows, inputs, tokens;
};

constexpr int kGemmThreads = WISP_MMA_GEMM_THREADS, kTileRows = 128;
constexpr int kBlockRows = 64, kStepBytes = 128, kBlockBytes = kBlockRows * kStepBytes;  // of the tiled layout

template <int kTileTokens>
struct TileShape {
  static constexpr int kTokens = kTileTokens;
  static constexpr int kStages = kTokens > 64 ? 3 : 4;
  static constexpr int kStageBytes = (kTileRows + kTokens) * kStepBytes;
  // Tokens and rows of a warp; eight warps cover the tile.
  static constexpr int kWarpTokens = kTokens < 32 ? kTokens : 32;
  static constexpr int kWarpsAcross = kTokens / kWarpTokens;
  static constexpr int kWarpRows = 16 * kWarpsAcross;
  static constexpr int kM = kWarpRows / 16, kN = kWarpTokens / 8;
};

// The tile of one block and its threads' share. Token tiles are blockIdx.x, row tiles blockIdx.y, K-ranges blockIdx.z.
template <class Tile>
struct CtaTile {
  const GemmArgs& a;
  int lane, warp_row, warp_token;  // the warp's first row and token in the tile
  int first, steps, k_tiles;       // first step and number of steps of this K-range; steps of all K
  const unsigned char* weights;    // next source of this thread's copies
  const bf16* tokens;
  int column;  // column of `tokens`

  __device__ CtaTile(const bf16* x, const GemmArgs& a) : a(a) {
    const int warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    warp_row = warp / Tile::kWarpsAcross * Tile::kWarpRows, warp_token = warp % Tile::kWarpsAcross * Tile::kWarpTokens;
    k_tiles = (a.inputs + 63) / 64;
    first = begin(blockIdx.z), steps = begin(blockIdx.z + 1) - first;
    weights = a.weight + (blockIdx.y * 2ll * k_tiles + first) * kBlockBytes + threadIdx.x * 16;
    column = first * 64 + threadIdx.x % 8 * 8;
    tokens = x + (blockIdx.x * Tile::kTokens + threadIdx.x / 8) * a.x_stride + column;
  }

  // First step of a K-range.
  __device__ int begin(int range) const {
    return static_cast<int>(static_cast<long long>(k_tiles) * range / gridDim.z);
  }

  // Copy the weights of the next step: two 64-row blocks; the second may be past the last row.
  __device__ void copy_weights(uint32_t stage) {
    const bool has_second = (blockIdx.y * 2 + 1) * kBlockRows < a.rows;
    const unsigned char* second = weights + static_cast<long long>(k_tiles) * kBlockBytes;
#pragma unroll
    for (int at = 0; at < kBlockBytes; at += kGemmThreads * 16) {
      const uint32_t to = stage + threadIdx.x * 16 + at;
      copy16_async(to, weights + at, true);
      copy16_async(to + kBlockBytes, has_second ? second + at : weights, has_second);
    }
    weights += kBlockBytes;
  }

  // Copy the tokens of the next step, zeros outside: memory there may hold NaN.
  __device__ void copy_tokens(uint32_t stage) {
    constexpr int kRows = kGemmThreads / 8;
    const int row = threadIdx.x / 8, left = a.tokens - blockIdx.x * Tile::kTokens;
    const uint32_t to = stage + (kTileRows + row) * kStepBytes + (threadIdx.x % 8 ^ row % 8) * 16;
#pragma unroll
    for (int i = 0; i < Tile::kTokens; i += kRows) {
      if (row + i >= Tile::kTokens) continue;
      const bool has = row + i < left && column < a.inputs;
      const void* from = has ? tokens + i * a.x_stride : nullptr;
      copy16_async(to + i * kStepBytes, has ? from : a.weight, has);
    }
    tokens += 64, column += 64;
  }

  // sums += the warp's rows times its tokens, of one step.
  __device__ void multiply(float (&sums)[Tile::kM][Tile::kN][4], uint32_t stage) const {
    const uint32_t rows = stage + (warp_row + lane % 16) * kStepBytes;
    // With 8 tokens the upper lanes address the same ones again.
    const int token = warp_token + (lane / 16 * 8 + lane % 8) % Tile::kWarpTokens;
    const uint32_t tokens = stage + (kTileRows + token) * kStepBytes;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      uint32_t w[Tile::kM][4];
#pragma unroll
      for (int m = 0; m < Tile::kM; m++) {
        load_matrices(w[m], rows + m * 16 * kStepBytes + ((2 * k + lane / 16) ^ lane % 8) * 16);
      }
#pragma unroll
      for (int n = 0; n < Tile::kN; n += 2) {
        uint32_t t[4];
        load_matrices(t, tokens + n * 8 * kStepBytes + ((2 * k + lane / 8 % 2) ^ lane % 8) * 16);
#pragma unroll
        for (int m = 0; m < Tile::kM; m++) {
          mma_16x8x16(sums[m][n], w[m], t);
          if (n + 1 < Tile::kN) mma_16x8x16(sums[m][(n + 1) % Tile::kN], w[m], t + 2);
        }
      }
    }
  }

  // Store the partial sums of this K-range and arrive. Returns true in the last block, which then has the sums over all
  // of K, added in the order of K: the same bits whichever block is last.
  __device__ bool combine(float (&sums)[Tile::kM][Tile::kN][4]) const {
    constexpr int kVectors = Tile::kM * Tile::kN;
    const int tile = blockIdx.y * gridDim.x + blockIdx.x, splits = gridDim.z;
    float4* first = a.partials + static_cast<size_t>(tile) * splits * kVectors * kGemmThreads + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kVectors; i++) {
      const float* s = sums[i / Tile::kN][i % Tile::kN];
      __stcg(first + (blockIdx.z * kVectors + i) * kGemmThreads, make_float4(s[0], s[1], s[2], s[3]));
    }
    __threadfence();
    __syncthreads();
    if (!__syncthreads_or(threadIdx.x == 0 && atomicAdd(a.arrivals + tile, 1) == splits - 1)) return false;
    __threadfence();
    if (threadIdx.x == 0) a.arrivals[tile] = 0;
#pragma unroll
    for (int i = 0; i < kVectors; i++) {
      float* s = sums[i / Tile::kN][i % Tile::kN];
      s[0] = s[1] = s[2] = s[3] = 0.f;
    }
#pragma unroll(kVectors < 4 ? 4 : 1)
    for (int split = 0; split < splits; split++) {
#pragma unroll
      for (int i = 0; i < kVectors; i++) {
        float* s = sums[i / Tile::kN][i % Tile::kN];
        const float4 v = __ldcg(first + (split * kVectors + i) * kGemmThreads);
        s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
      }
    }
    return true;
  }

  // A thread's sums of a fragment are rows `row` and `row + 8` of two neighbouring tokens.
  template <Store kStore>
  __device__ void store(const float (&sums)[Tile::kM][Tile::kN][4]) const {
#pragma unroll
    for (int m = 0; m < Tile::kM; m++) {
      const int row = blockIdx.y * kTileRows + warp_row + m * 16 + lane / 4;
      if (row >= a.rows) continue;
      const bool has_right = row + 8 < a.rows;
      const float left = a.bias ? __bfloat162float(a.bias[row]) : 0.f;
      const float right = a.bias && has_right ? __bfloat162float(a.bias[row + 8]) : 0.f;
#pragma unroll
      for (int i = 0; i < Tile::kN * 2; i++) {
        const int token = blockIdx.x * Tile::kTokens + warp_token + i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (token >= a.tokens) continue;
        const float s = sums[m][i / 2][i % 2] + left, t = sums[m][i / 2][i % 2 + 2] + right;
        if constexpr (kStore == Store::kGated) {
          bf16* y = static_cast<bf16*>(a.out) + static_cast<size_t>(token) * (a.rows / 2) + row / 16 * 8 + row % 16;
          *y = __float2bfloat16_rn(__fdividef(s, 1.f + __expf(-s)) * t);
        } else if constexpr (kStore == Store::kPlain) {
          bf16* y = static_cast<bf16*>(a.out) + static_cast<size_t>(token) * a.rows + row;
          y[0] = __float2bfloat16_rn(s);
          if (has_right) y[8] = __float2bfloat16_rn(t);
        } else {
          float* y = static_cast<float*>(a.out) + static_cast<size_t>(token) * a.rows + row;
          y[0] = s;
          if (has_right) y[8] = t;
        }
      }
    }
  }
};

template <int kTokens, Store kStore>
__device__ __forceinline__ void linear(const bf16* x, const GemmArgs& a) {
  using Tile = TileShape<kTokens>;
  constexpr int kAhead = Tile::kStages - 1;
  extern __shared__ __align__(128) unsigned char shared[];
  pdl_launch_dependents();
  CtaTile<Tile> tile(x, a);
  const uint32_t ring = shared_address(shared);

  // 1. Fill the pipeline. Weights depend on no kernel; tokens are the result of the one before. A copy group a step.
#pragma unroll
  for (int i = 0; i < kAhead; i++) {
    if (i < tile.steps) tile.copy_weights(ring + i * Tile::kStageBytes);
  }
  pdl_wait();
#pragma unroll
  for (int i = 0; i < kAhead; i++) {
    if (i < tile.steps) tile.copy_tokens(ring + i * Tile::kStageBytes);
    copies_commit();
  }

  // 2. Once a step has arrived for all threads, all are done with the one before it, whose stage is refilled.
  float sums[Tile::kM][Tile::kN][4] = {};
  uint32_t full = 0, empty = kAhead * Tile::kStageBytes;
#pragma unroll 1
  for (int step = 0; step < tile.steps; step++) {
    copies_wait<kAhead - 1>();
    __syncthreads();
    if (step + kAhead < tile.steps) {
      tile.copy_weights(ring + empty);
      tile.copy_tokens(ring + empty);
    }
    copies_commit();
    tile.multiply(sums, ring + full);
    empty = full;
    full = full + Tile::kStageBytes == Tile::kStages * Tile::kStageBytes ? 0 : full + Tile::kStageBytes;
  }

  // 3. Store the output, or combine with the other K-ranges of this tile.
  if (gridDim.z > 1 && !tile.combine(sums)) return;
  tile.template store<kStore>(sums);
}

}  // namespace portable

#define LINEAR_MMA(name, tokens, store)                                                   \
  extern "C" __global__ void __launch_bounds__(portable::kGemmThreads, 2)                 \
      name##_mma_n##tokens(const bf16* x, const __grid_constant__ portable::GemmArgs a) { \
    portable::linear<tokens, portable::Store::store>(x, a);                               \
  }
#define LINEAR_MMA_ENTRIES(name, store) \
  LINEAR_MMA(name, 8, store)            \
  LINEAR_MMA(name, 16, store)           \
  LINEAR_MMA(name, 32, store)           \
  LINEAR_MMA(name, 64, store)           \
  LINEAR_MMA(name, 128, store)
