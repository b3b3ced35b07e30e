// linear_mma.cuh: a product of packed weights and tokens on mma.sync, for any GPU from sm_80 on: linear.cu and its kin.
//
// A thread block has 128 weight rows (the 16 rows of m16n8k16) and kTokens tokens (its 8 columns). K comes in steps of
// 64 through a ring of cp.async copies: weights as they are packed, 128-byte swizzle included, tokens swizzled alike,
// so that ldmatrix meets no bank twice. Where tiles are few, K is cut into parts, and the last block to come adds them.
#pragma once

#include "copy/async_copy.cuh"
#include "math/bf16.cuh"
#include "sync/pdl.cuh"
#include "mma/warp_mma.cuh"

namespace portable {

enum class Store { kPlain, kGated, kFloat32 };

// ops/cuda/gemm/portable_linear.py has the same.
struct LinearArguments {
  const unsigned char* weight;
  const bf16* bias;  // of the packed rows, or null
  void* out;
  float4* parts;       // [tiles, parts of a tile, sums of a thread / 4, kLinearThreads]
  unsigned* arrivals;  // [tiles], zero before and after
  long long x_stride;  // elements
  int rows, inputs, tokens;
};

constexpr int kLinearThreads = WISP_MMA_GEMM_THREADS, kTileRows = 128;
constexpr int kBlockRows = 64, kStepBytes = 128, kBlockBytes = kBlockRows * kStepBytes;  // of packed weights

template <int kTileTokens>
struct LinearTile {
  static constexpr int kTokens = kTileTokens;
  static constexpr int kStages = kTokens > 64 ? 3 : 4;
  static constexpr int kStageBytes = (kTileRows + kTokens) * kStepBytes;
  // Of a warp: tokens, and rows; eight warps cover the tile.
  static constexpr int kWarpTokens = kTokens < 32 ? kTokens : 32;
  static constexpr int kWarpsAcross = kTokens / kWarpTokens;
  static constexpr int kWarpRows = 16 * kWarpsAcross;
  static constexpr int kM = kWarpRows / 16, kN = kWarpTokens / 8;
};

// Where a block and its threads stand. Token tiles are blockIdx.x, row tiles blockIdx.y, parts of K blockIdx.z.
template <class Tile>
struct LinearWork {
  const LinearArguments& a;
  int lane, warp_row, warp_token;  // of the warp, in the tile
  int first, steps, k_tiles;       // of this part of K; of all
  const unsigned char* weights;    // what this thread copies next
  const bf16* tokens;
  int column;  // of `tokens`

  __device__ LinearWork(const bf16* x, const LinearArguments& a) : a(a) {
    const int warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    warp_row = warp / Tile::kWarpsAcross * Tile::kWarpRows, warp_token = warp % Tile::kWarpsAcross * Tile::kWarpTokens;
    k_tiles = (a.inputs + 63) / 64;
    first = begin(blockIdx.z), steps = begin(blockIdx.z + 1) - first;
    weights = a.weight + (blockIdx.y * 2ll * k_tiles + first) * kBlockBytes + threadIdx.x * 16;
    column = first * 64 + threadIdx.x % 8 * 8;
    tokens = x + (blockIdx.x * Tile::kTokens + threadIdx.x / 8) * a.x_stride + column;
  }

  // The first step of a part of K.
  __device__ int begin(int part) const { return static_cast<int>(static_cast<long long>(k_tiles) * part / gridDim.z); }

  // Bring the weights of the next step: two packed blocks, the second of which may not be there.
  __device__ void copy_weights(uint32_t stage) {
    const bool has_second = (blockIdx.y * 2 + 1) * kBlockRows < a.rows;
    const unsigned char* second = weights + static_cast<long long>(k_tiles) * kBlockBytes;
#pragma unroll
    for (int at = 0; at < kBlockBytes; at += kLinearThreads * 16) {
      const uint32_t to = stage + threadIdx.x * 16 + at;
      copy16_async(to, weights + at, true);
      copy16_async(to + kBlockBytes, has_second ? second + at : weights, has_second);
    }
    weights += kBlockBytes;
  }

  // Bring the tokens of the next step, zeros outside: what lies there may be NaN.
  __device__ void copy_tokens(uint32_t stage) {
    constexpr int kRows = kLinearThreads / 8;
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
    // Of 8 tokens the upper lanes name the same ones again.
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

  // Leave the sums of this part and count in. True in the last block to come: it then has the sums of all parts, added
  // in the order of K, the same bits whoever is last.
  __device__ bool join(float (&sums)[Tile::kM][Tile::kN][4]) const {
    constexpr int kVectors = Tile::kM * Tile::kN;
    const int tile = blockIdx.y * gridDim.x + blockIdx.x, parts = gridDim.z;
    float4* first = a.parts + static_cast<size_t>(tile) * parts * kVectors * kLinearThreads + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kVectors; i++) {
      const float* s = sums[i / Tile::kN][i % Tile::kN];
      __stcg(first + (blockIdx.z * kVectors + i) * kLinearThreads, make_float4(s[0], s[1], s[2], s[3]));
    }
    __threadfence();
    __syncthreads();
    if (!__syncthreads_or(threadIdx.x == 0 && atomicAdd(a.arrivals + tile, 1) == parts - 1)) return false;
    __threadfence();
    if (threadIdx.x == 0) a.arrivals[tile] = 0;
#pragma unroll
    for (int i = 0; i < kVectors; i++) {
      float* s = sums[i / Tile::kN][i % Tile::kN];
      s[0] = s[1] = s[2] = s[3] = 0.f;
    }
#pragma unroll(kVectors < 4 ? 4 : 1)
    for (int part = 0; part < parts; part++) {
#pragma unroll
      for (int i = 0; i < kVectors; i++) {
        float* s = sums[i / Tile::kN][i % Tile::kN];
        const float4 v = __ldcg(first + (part * kVectors + i) * kLinearThreads);
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
__device__ __forceinline__ void linear(const bf16* x, const LinearArguments& a) {
  using Tile = LinearTile<kTokens>;
  constexpr int kAhead = Tile::kStages - 1;
  extern __shared__ __align__(128) unsigned char shared[];
  pdl_launch_dependents();
  LinearWork<Tile> work(x, a);
  const uint32_t ring = shared_address(shared);

  // 1. Fill the ring. Weights are nobody's result; tokens are that of the kernel before. A group of copies a step.
#pragma unroll
  for (int i = 0; i < kAhead; i++) {
    if (i < work.steps) work.copy_weights(ring + i * Tile::kStageBytes);
  }
  pdl_wait();
#pragma unroll
  for (int i = 0; i < kAhead; i++) {
    if (i < work.steps) work.copy_tokens(ring + i * Tile::kStageBytes);
    copies_commit();
  }

  // 2. Once a step is there for all threads, all are done with the one before it, whose place is filled again.
  float sums[Tile::kM][Tile::kN][4] = {};
  uint32_t full = 0, empty = kAhead * Tile::kStageBytes;
#pragma unroll 1
  for (int step = 0; step < work.steps; step++) {
    copies_wait<kAhead - 1>();
    __syncthreads();
    if (step + kAhead < work.steps) {
      work.copy_weights(ring + empty);
      work.copy_tokens(ring + empty);
    }
    copies_commit();
    work.multiply(sums, ring + full);
    empty = full;
    full = full + Tile::kStageBytes == Tile::kStages * Tile::kStageBytes ? 0 : full + Tile::kStageBytes;
  }

  // 3. To the output, or to the other parts of this tile.
  if (gridDim.z > 1 && !work.join(sums)) return;
  work.template store<kStore>(sums);
}

}  // namespace portable

#define LINEAR_MMA(name, tokens, store)                                                          \
  extern "C" __global__ void __launch_bounds__(portable::kLinearThreads, 2)                      \
      name##_mma_n##tokens(const bf16* x, const __grid_constant__ portable::LinearArguments a) { \
    portable::linear<tokens, portable::Store::store>(x, a);                                      \
  }
#define LINEAR_MMA_ENTRIES(name, store) \
  LINEAR_MMA(name, 8, store)            \
  LINEAR_MMA(name, 16, store)           \
  LINEAR_MMA(name, 32, store)           \
  LINEAR_MMA(name, 64, store)           \
  LINEAR_MMA(name, 128, store)
