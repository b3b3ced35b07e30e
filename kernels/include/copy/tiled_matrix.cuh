// tiled_matrix.cuh: addresses in a matrix in 128B-swizzled blocks of 64 x 64 (kernels/README.md).
#pragma once

#include "math/bf16.cuh"

constexpr int kBlockRows = 64, kBlockColumns = 64;

// Return the element offset of chunk `chunk` (8 columns) of a row in a tiled matrix, `tiles` blocks along its columns.
__device__ __forceinline__ int64_t tiled_chunk(int row, int chunk, int tiles) {
  constexpr int kChunks = kBlockColumns / kBf16Vec;
  const int64_t block = static_cast<int64_t>(row / kBlockRows) * tiles + chunk / kChunks;
  const int column = (chunk % kChunks) ^ (row % 8);
  return block * (kBlockRows * kBlockColumns) + row % kBlockRows * kBlockColumns + column * kBf16Vec;
}
