// quantized_mma.cuh: GEMM of packed quantized weights and bf16 tokens on mma.sync, for any GPU from sm_80 on.
//
// A thread block has 128 weight rows (eight slices of 16) and kTokens tokens. Each warp streams the codes of its slices
// from global memory into registers, makes bf16 A fragments of 64 columns at a time, and loads the next codes before it
// multiplies: every fragment serves up to 128 tokens. Tokens come through a cp.async pipeline, 128-byte swizzled.
// Scales of groups multiply float32 sums; scales of rows do in the epilogue. K is split as in linear_mma.cuh; where it
// is not, a token's result is the same at every tile.
#pragma once

#include "../gemm/token_rows.cuh"
#include "copy/async_copy.cuh"
#include "mma/warp_mma.cuh"
#include "quantized_words.cuh"
#include "sync/pdl.cuh"

namespace portable {

// By value, as ops/cuda/gemm/portable_plan.py fills it.
struct QuantizedArgs {
  GemmArgs gemm;
  long long row_scales;          // offset of float32 [64 row tiles]
  long long block_scales;        // offset of float32 [row tile][column tile][slice][upper, lower 8 rows], if any
  int slice_bytes;               // codes, scales and zero points of a slice
  int group_shift, zero_points;  // SlicePlace
  int store;                     // Store
};

constexpr int kChunk = 64, kChunkRowBytes = 128;  // columns that fragments are made of at a time

template <class Words, int kTileTokens>
struct QuantizedTile {
  static constexpr int kTokens = kTileTokens;
  // From 128 tokens two warps share slices and have half of the tokens each: fewer reads of tokens, half of the sums.
  static constexpr int kWarpsAcross = kTokens < 128 ? 1 : 2;
  static constexpr int kWarpTokens = kTokens / kWarpsAcross;
  static constexpr int kWarpRows = 16 * kWarpsAcross;
  static constexpr int kM = kWarpsAcross, kN = kWarpTokens / 8;
  static constexpr int kTileChunks = Words::kColumns / kChunk;  // of a packed tile
  static constexpr int kStepChunks = kTokens <= 16 ? kTileChunks : kTokens == 32 ? 2 : 1;
  static constexpr int kStages = kTokens == 256 ? 3 : 4;
  static constexpr int kStageBytes = kStepChunks * kTokens * kChunkRowBytes;
  static constexpr int kBlocksPerSm = kTokens < 128 ? 2 : 1;
};

// The A fragments of 64 columns of a slice, and the scales of their sums by group and row.
template <class Words>
struct SliceFragments {
  static constexpr int kGroups = Words::kGroups ? Words::kGroups : 1;
  uint32_t w[4][4];
  float scales[kGroups][2];

  // Make the fragment of a step; with the first of a group its scales.
  __device__ __forceinline__ void make(const Words& words, int step) {
    words.fragment(w[step], step);
    if (step % (4 / kGroups)) return;
    const int group = step / (4 / kGroups);
    scales[group][0] = words.scale(group, 0), scales[group][1] = words.scale(group, 1);
  }
};

// sums += the fragments times the tokens of 64 columns. Sums that do not depend on each other take turns. `row_of` has
// the address of the 16 bytes that this lane names for ldmatrix, of eight tokens and a half of the columns.
template <class Words, int kM, int kN, class RowOf>
__device__ __forceinline__ void multiply_chunk(float (&sums)[kM][kN][4], const SliceFragments<Words> (&made)[kM],
                                               RowOf row_of) {
  constexpr int kPair = kN > 1 ? 2 : 1, kGroups = SliceFragments<Words>::kGroups, kSteps = 4 / kGroups;
#pragma unroll
  for (int n = 0; n < kN; n += kPair) {
    uint32_t t[kPair][2][4];
#pragma unroll
    for (int i = 0; i < 2 * kPair; i++) load_matrices(t[i / 2][i % 2], row_of(n + i / 2, i % 2));
#pragma unroll
    for (int group = 0; group < kGroups; group++) {
      float parts[kPair][kM][4] = {};
#pragma unroll
      for (int step = group * kSteps; step < (group + 1) * kSteps; step++) {
#pragma unroll
        for (int i = 0; i < kPair * kM; i++) {
          const int j = i / kM, m = i % kM;
          float* sum = Words::kGroups ? parts[j][m] : sums[m][n + j];
          mma_16x8x16(sum, made[m].w[step], t[j][step / 2] + step % 2 * 2);
        }
      }
      if constexpr (Words::kGroups > 0) {
#pragma unroll
        for (int i = 0; i < kPair * kM * 4; i++) {
          const int j = i / 4 / kM, m = i / 4 % kM, at = i % 4;
          sums[m][n + j][at] += parts[j][m][at] * made[m].scales[group][at / 2];
        }
      }
    }
  }
}

// The tile of one block and its threads' share.
template <class Words, class Tile, class Rows>
struct QuantizedCta : TileOutput<Tile> {
  using Fragments = SliceFragments<Words>;
  using TileOutput<Tile>::a;
  using TileOutput<Tile>::lane;
  const QuantizedArgs& q;
  int steps;  // of this K-range
  Rows rows;  // sources of this thread's tokens, from `column` on
  int column;
  SlicePlace place;  // of the next load
  int chunk;         // its 64 columns of the packed tile
  Words words[Tile::kM][Tile::kStepChunks];

  __device__ QuantizedCta(const bf16* x, const QuantizedArgs& q, const TilePlace& at, const int* list)
      : TileOutput<Tile>(q.gemm, at), q(q), rows(x, q.gemm, at, list) {
    constexpr int kStepColumns = Tile::kStepChunks * kChunk;
    const int all = (a.inputs + kStepColumns - 1) / kStepColumns;
    const int first = static_cast<int>(static_cast<long long>(all) * blockIdx.z / gridDim.z);
    steps = static_cast<int>(static_cast<long long>(all) * (blockIdx.z + 1) / gridDim.z) - first;
    const int row = threadIdx.x / 8, begin = first * kStepColumns;
    column = begin + row / Tile::kTokens * kChunk + threadIdx.x % 8 * 8;
    // A warp past the last row tile computes those rows again, and stores nothing.
    const int row_tile = min(at.row_tile * 2 + this->warp_row / 64, (a.rows + 63) / 64 - 1);
    const int column_tiles = (a.inputs + Words::kColumns - 1) / Words::kColumns, slice = this->warp_row % 64 / 16;
    const long long tile = static_cast<long long>(row_tile) * column_tiles + begin / Words::kColumns;
    chunk = begin % Words::kColumns / kChunk;
    place.codes = a.weight + (tile * 4 + slice) * q.slice_bytes;
    place.block_scales = a.weight + q.block_scales + (tile * 4 + slice) * 8;
    place.group_shift = q.group_shift, place.zero_points = q.zero_points;
  }

  // Load chunk `i` of the next step.
  __device__ void load(int i) {
#pragma unroll
    for (int m = 0; m < Tile::kM; m++) {
      const SlicePlace own = {place.codes + m * q.slice_bytes, place.block_scales + m * 8, place.group_shift,
                              place.zero_points};
      words[m][i].load(own, Tile::kStepChunks == Tile::kTileChunks ? i : chunk + i);
    }
  }
  __device__ void advance() {
    chunk += Tile::kStepChunks;
    if (chunk < Tile::kTileChunks) return;
    chunk = 0, place.codes += 4 * q.slice_bytes, place.block_scales += 32;
  }

  // Copy the tokens of the next step, zeros outside: memory there may hold NaN.
  __device__ void copy_tokens(uint32_t stage) {
    constexpr int kRows = kGemmThreads / 8, kAll = Tile::kTokens * Tile::kStepChunks;  // of 128 bytes
    const int row = threadIdx.x / 8;
    const uint32_t to = stage + row * kChunkRowBytes + (threadIdx.x % 8 ^ row % 8) * 16;
#pragma unroll
    for (int i = 0; i < kAll; i += kRows) {
      if (row + i >= kAll) continue;
      const int at_column = column + i / Tile::kTokens * kChunk;
      const bf16* from = rows.row(i % Tile::kTokens);
      const bool has = from && at_column < a.inputs;
      copy16_async(to + i * kChunkRowBytes, has ? static_cast<const void*>(from + at_column) : a.weight, has);
    }
    column += Tile::kStepChunks * kChunk;
  }

  // sums += the warp's rows times its tokens, of the step in words; loads the next step's, if there is one.
  __device__ void multiply(float (&sums)[Tile::kM][Tile::kN][4], uint32_t stage, bool has_next) {
#pragma unroll
    for (int i = 0; i < Tile::kStepChunks; i++) {
      Fragments made[Tile::kM];
#pragma unroll
      for (int m = 0; m < Tile::kM; m++) {
#pragma unroll
        for (int step = 0; step < 4; step++) made[m].make(words[m][i], step);
      }
      if (has_next) load(i);
      const uint32_t rows = stage + (i * Tile::kTokens + this->warp_token + lane % 8) * kChunkRowBytes;
      multiply_chunk(sums, made, [&](int group, int half) {
        return rows + group * 8 * kChunkRowBytes + ((lane / 8 + half * 4) ^ lane % 8) * 16;
      });
    }
  }
};

// Sum the tile over this block's K-range.
template <class Tile, class Cta>
__device__ __forceinline__ void multiply_tile(Cta& tile, float (&sums)[Tile::kM][Tile::kN][4]) {
  constexpr int kAhead = Tile::kStages - 1;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t ring = shared_address(shared);

  // 1. Load the first step's words, which depend on no kernel, and fill the pipeline. A copy group a step.
#pragma unroll
  for (int i = 0; i < Tile::kStepChunks; i++) tile.load(i);
  tile.advance();
  pdl_wait();
#pragma unroll
  for (int i = 0; i < kAhead; i++) {
    if (i < tile.steps) tile.copy_tokens(ring + i * Tile::kStageBytes);
    copies_commit();
  }

  // 2. Once a step has arrived for all threads, all are done with the one before it, whose stage is refilled.
  uint32_t full = 0, empty = kAhead * Tile::kStageBytes;
#pragma unroll 1
  for (int step = 0; step < tile.steps; step++) {
    copies_wait<kAhead - 1>();
    __syncthreads();
    if (step + kAhead < tile.steps) tile.copy_tokens(ring + empty);
    copies_commit();
    tile.multiply(sums, ring + full, step + 1 < tile.steps);
    tile.advance();
    empty = full;
    full = full + Tile::kStageBytes == Tile::kStages * Tile::kStageBytes ? 0 : full + Tile::kStageBytes;
  }
}

template <class Words, int kTokens>
__device__ __forceinline__ void quantized_linear(const bf16* x, const QuantizedArgs& q) {
  using Tile = QuantizedTile<Words, kTokens>;
  pdl_launch_dependents();
  QuantizedCta<Words, Tile, StridedRows<kTokens>> tile(x, q, dense_place(q.gemm, kTokens), nullptr);
  float sums[Tile::kM][Tile::kN][4] = {};
  multiply_tile<Tile>(tile, sums);
  if (gridDim.z > 1 && !tile.combine(sums)) return;  // the last block of the K-ranges has them all
  const float* scales = reinterpret_cast<const float*>(q.gemm.weight + q.row_scales);
  if (q.store == static_cast<int>(Store::kPlain)) {
    tile.template store<Store::kPlain>(sums, scales);
  } else if (q.store == static_cast<int>(Store::kGated)) {
    tile.template store<Store::kGated>(sums, scales);
  } else {
    tile.template store<Store::kFloat32>(sums, scales);
  }
}

// The same of a tile of a mixture of experts, whose place the kernel before this one has written.
template <class Words, int kTokens>
__device__ __forceinline__ void quantized_experts(const bf16* x, QuantizedArgs q, const ExpertArgs& experts) {
  using Tile = QuantizedTile<Words, kTokens>;
  pdl_launch_dependents();
  pdl_wait();
  TilePlace at;
  int expert;
  if (!expert_place(q.gemm, experts, at, expert)) return;
  QuantizedCta<Words, Tile, GatheredRows<kTokens>> tile(x, q, at, experts.rows);
  float sums[Tile::kM][Tile::kN][4] = {};
  multiply_tile<Tile>(tile, sums);
  const float* scales = reinterpret_cast<const float*>(q.gemm.weight + q.row_scales);
  tile.store_as(static_cast<Store>(experts.store), sums, scales);
}

}  // namespace portable

#define LINEAR_MMA(name, words, tokens)                                                                        \
  extern "C" __global__ void __launch_bounds__(portable::kGemmThreads,                                         \
                                               portable::QuantizedTile<portable::words, tokens>::kBlocksPerSm) \
      linear_mma_##name##_n##tokens(const bf16* x, const __grid_constant__ portable::QuantizedArgs q) {        \
    portable::quantized_linear<portable::words, tokens>(x, q);                                                 \
  }
#define LINEAR_MMA_ENTRIES(name, words) \
  LINEAR_MMA(name, words, 8)            \
  LINEAR_MMA(name, words, 16)           \
  LINEAR_MMA(name, words, 32)           \
  LINEAR_MMA(name, words, 64)           \
  LINEAR_MMA(name, words, 128)          \
  LINEAR_MMA(name, words, 256)

#define EXPERTS_MMA(name, words, tokens)                                                                       \
  extern "C" __global__ void __launch_bounds__(portable::kGemmThreads,                                         \
                                               portable::QuantizedTile<portable::words, tokens>::kBlocksPerSm) \
      experts_mma_##name##_n##tokens(const bf16* x, const __grid_constant__ portable::QuantizedArgs q,         \
                                     const __grid_constant__ portable::ExpertArgs experts) {                   \
    portable::quantized_experts<portable::words, tokens>(x, q, experts);                                       \
  }
#define EXPERTS_MMA_ENTRIES(name, words) \
  EXPERTS_MMA(name, words, 8)            \
  EXPERTS_MMA(name, words, 16)           \
  EXPERTS_MMA(name, words, 32)           \
  EXPERTS_MMA(name, words, 64)           \
  EXPERTS_MMA(name, words, 128)
