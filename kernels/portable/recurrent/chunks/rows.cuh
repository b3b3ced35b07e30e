// rows.cuh: a chunk's rows: copied into shared memory, multiplied in a warp's registers, and stored.
#pragma once

#include "copy/async_copy.cuh"
#include "math/bf16.cuh"
#include "mma/warp_mma.cuh"
#include "sequences.cuh"

// Copy kRows rows by one warp; zeros past `rows` and `columns`, up to `width`.
template <int kRows = kChunk>
__device__ __forceinline__ void copy_rows(bf16* to, int to_stride, const bf16* from, int64_t from_stride, int rows,
                                          int columns, int width) {
  const int vectors = width / kBf16Vec;
#pragma unroll 4
  for (int i = threadIdx.x % 32; i < kRows * vectors; i += 32) {
    const int row = i / vectors, column = i % vectors * kBf16Vec;
    const bool exists = row < rows && column < columns;
    copy16_async(shared_address(to + row * to_stride + column), exists ? from + row * from_stride + column : from,
                 exists);
  }
}

using Rows = float[kChunk / 8][4];  // 16 columns of a chunk, as rows, by 64 tokens

// Multiply a warp's 16 rows by a number.
template <int kTiles>
__device__ __forceinline__ void multiply_by(float (&sums)[kTiles][4], float factor) {
#pragma unroll
  for (int tile = 0; tile < kTiles; tile++) {
#pragma unroll
    for (int i = 0; i < 4; i++) sums[tile][i] *= factor;
  }
}

// Add a b to two tiles of 8 columns, from `tile` on.
__device__ __forceinline__ void add_product(float (*sums)[4], int tile, const uint32_t (&a)[4],
                                            const uint32_t (&b)[4]) {
#pragma unroll
  for (int i = 0; i < 2; i++) mma_16x8x16(sums[tile + i], a, b + 2 * i);
}

// A warp's 16 columns of a result, or 8; a lane stores two columns of a token at a time.
__device__ __forceinline__ void store_rows(const Rows& rows, bf16* out, int64_t stride, int tokens, int columns,
                                           int lane) {
#pragma unroll
  for (int tile = 0; tile < kChunk / 8; tile++) {
    const int token = tile * 8 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint32_t pair = transpose_8x8(pack_bf16(rows[tile][2 * half], rows[tile][2 * half + 1]));
      if (token < tokens && half * 8 < columns) {
        *reinterpret_cast<uint32_t*>(out + token * stride + half * 8 + lane % 4 * 2) = pair;
      }
    }
  }
}
