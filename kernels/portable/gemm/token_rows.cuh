// token_rows.cuh: the rows of x that a thread copies for a tile's tokens, one of every 32; and the tiles of a mixture
// of experts, whose tokens lie anywhere in x.
#pragma once

#include "mma_output.cuh"

namespace portable {

// A mixture's GEMM, by value, as ops/cuda/moe/arguments.py fills it. Positions are those of the pairs of a token and an
// expert, sorted by expert (moe/sort_pairs.cu).
struct ExpertArgs {
  const int4* tiles;       // [tile_count]: expert, first position, last + 1
  const int* tile_count;   // [1]; the grid has more tiles
  const int* rows;         // row of x of each position, or null: the position itself
  long long matrix_bytes;  // from an expert's matrix to the next one's
  int store;               // Store
};

// Rows that follow each other.
template <int kTokens>
struct StridedRows {
  const bf16* first;
  long long stride;
  int left;

  __device__ StridedRows(const bf16* x, const GemmArgs& a, const TilePlace& at, const int*) : stride(a.x_stride) {
    const int row = threadIdx.x / 8 % kTokens;
    first = x + (at.first + row) * stride;
    left = at.end - at.first - row;
  }
  // Row `i`, a multiple of 32, after this thread's first, or null past the last token.
  __device__ const bf16* row(int i) const { return i < left ? first + i * stride : nullptr; }
};

// Rows that a list names, or that follow each other where there is none.
template <int kTokens>
struct GatheredRows {
  static constexpr int kCount = kTokens < 32 ? 1 : kTokens / 32;
  const bf16* source[kCount];

  __device__ GatheredRows(const bf16* x, const GemmArgs& a, const TilePlace& at, const int* rows) {
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const int position = at.first + threadIdx.x / 8 % kTokens + i * 32;
      source[i] = nullptr;
      if (position < at.end) source[i] = x + (rows ? rows[position] : position) * a.x_stride;
    }
  }
  __device__ const bf16* row(int i) const { return source[i / 32]; }
};

// The place of a thread block of a dense GEMM.
__device__ __forceinline__ TilePlace dense_place(const GemmArgs& a, int tile_tokens) {
  return {static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x) * tile_tokens, a.tokens};
}

// Find the place of a thread block of a mixture's GEMM, row tiles blockIdx.x, and point the arguments to its expert.
// Returns false if there is no such tile.
__device__ __forceinline__ bool expert_place(GemmArgs& a, const ExpertArgs& experts, TilePlace& at, int& expert) {
  if (static_cast<int>(blockIdx.y) >= *experts.tile_count) return false;
  const int4 tile = experts.tiles[blockIdx.y];
  at = {static_cast<int>(blockIdx.x), tile.y, tile.z};
  expert = tile.x;
  a.weight += expert * experts.matrix_bytes;
  if (a.bias) a.bias += static_cast<long long>(expert) * a.rows;
  return true;
}

}  // namespace portable
