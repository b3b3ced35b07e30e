// linear_mma.cuh: GEMM of tiled weights and tokens on mma.sync, for any GPU from sm_80 on; linear*.cu instantiate it.
//
// A thread block has 128 weight rows (the 16 rows of m16n8k16) and kTokens tokens (its 8 columns). K advances in steps
// of 64 through a cp.async pipeline: weights as they are stored, 128-byte swizzle included, tokens swizzled alike, so
// that ldmatrix has no bank conflicts. Where tiles are few, K is split (split-K), and the last block to arrive adds the
// partial sums.
#pragma once

#include "copy/async_copy.cuh"
#include "mma/warp_mma.cuh"
#include "sync/pdl.cuh"
#include "token_rows.cuh"

namespace portable {

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

// The tile of one block and its threads' share.
template <class Tile, class Rows>
struct CtaTile : TileOutput<Tile> {
  using TileOutput<Tile>::a;
  using TileOutput<Tile>::at;
  using TileOutput<Tile>::lane;
  using TileOutput<Tile>::warp_row;
  using TileOutput<Tile>::warp_token;
  int first, steps, k_tiles;     // first step and number of steps of this K-range; steps of all K
  const unsigned char* weights;  // next source of this thread's copies
  Rows rows;                     // sources of its tokens, from `column` on
  int column;

  __device__ CtaTile(const bf16* x, const GemmArgs& a, const TilePlace& at, const int* list)
      : TileOutput<Tile>(a, at), rows(x, a, at, list) {
    k_tiles = (a.inputs + 63) / 64;
    first = begin(blockIdx.z), steps = begin(blockIdx.z + 1) - first;
    weights = a.weight + (at.row_tile * 2ll * k_tiles + first) * kBlockBytes + threadIdx.x * 16;
    column = first * 64 + threadIdx.x % 8 * 8;
  }

  // First step of a K-range.
  __device__ int begin(int range) const {
    return static_cast<int>(static_cast<long long>(k_tiles) * range / gridDim.z);
  }

  // Copy the weights of the next step: two 64-row blocks; the second may be past the last row.
  __device__ void copy_weights(uint32_t stage) {
    const bool has_second = (at.row_tile * 2 + 1) * kBlockRows < a.rows;
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
    const int row = threadIdx.x / 8;
    const uint32_t to = stage + (kTileRows + row) * kStepBytes + (threadIdx.x % 8 ^ row % 8) * 16;
#pragma unroll
    for (int i = 0; i < Tile::kTokens; i += kRows) {
      if (row + i >= Tile::kTokens) continue;
      const bf16* from = rows.row(i);
      const bool has = from && column < a.inputs;
      copy16_async(to + i * kStepBytes, has ? static_cast<const void*>(from + column) : a.weight, has);
    }
    column += 64;
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
};

// Sum the tile at `at` over this block's K-range. Weights are loaded before the kernel ahead has ended.
template <int kTokens, class Tile>
__device__ __forceinline__ void multiply_tile(Tile& tile,
                                              float (&sums)[TileShape<kTokens>::kM][TileShape<kTokens>::kN][4]) {
  using Shape = TileShape<kTokens>;
  constexpr int kAhead = Shape::kStages - 1;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t ring = shared_address(shared);

  // 1. Fill the pipeline. Weights depend on no kernel; tokens are the result of the one before. A copy group a step.
#pragma unroll
  for (int i = 0; i < kAhead; i++) {
    if (i < tile.steps) tile.copy_weights(ring + i * Shape::kStageBytes);
  }
  pdl_wait();
#pragma unroll
  for (int i = 0; i < kAhead; i++) {
    if (i < tile.steps) tile.copy_tokens(ring + i * Shape::kStageBytes);
    copies_commit();
  }

  // 2. Once a step has arrived for all threads, all are done with the one before it, whose stage is refilled.
  uint32_t full = 0, empty = kAhead * Shape::kStageBytes;
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
    full = full + Shape::kStageBytes == Shape::kStages * Shape::kStageBytes ? 0 : full + Shape::kStageBytes;
  }
}

template <int kTokens, Store kStore>
__device__ __forceinline__ void linear(const bf16* x, const GemmArgs& a) {
  using Shape = TileShape<kTokens>;
  pdl_launch_dependents();
  CtaTile<Shape, StridedRows<kTokens>> tile(x, a, dense_place(a, kTokens), nullptr);
  float sums[Shape::kM][Shape::kN][4] = {};
  multiply_tile<kTokens>(tile, sums);
  if (gridDim.z > 1 && !tile.combine(sums)) return;  // the last block of the K-ranges has them all
  tile.template store<kStore>(sums);
}

// The same of a tile of a mixture of experts, whose place the kernel before this one has written.
template <int kTokens>
__device__ __forceinline__ void expert_linear(const bf16* x, GemmArgs a, const ExpertArgs& experts) {
  using Shape = TileShape<kTokens>;
  pdl_launch_dependents();
  pdl_wait();
  TilePlace at;
  int expert;
  if (!expert_place(a, experts, at, expert)) return;
  CtaTile<Shape, GatheredRows<kTokens>> tile(x, a, at, experts.rows);
  float sums[Shape::kM][Shape::kN][4] = {};
  multiply_tile<kTokens>(tile, sums);
  tile.store_as(static_cast<Store>(experts.store), sums);
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

#define EXPERTS_MMA(tokens)                                                              \
  extern "C" __global__ void __launch_bounds__(portable::kGemmThreads, 2)                \
      experts_mma_n##tokens(const bf16* x, const __grid_constant__ portable::GemmArgs a, \
                            const __grid_constant__ portable::ExpertArgs experts) {      \
    portable::expert_linear<tokens>(x, a, experts);                                      \
  }
