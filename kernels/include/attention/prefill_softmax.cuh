// prefill_softmax.cuh: the softmax of prefill attention, a KV tile at a time, in the fragments of the tensor cores.
//
// A warp has 16 rows. Its lane has rows l / 4 and l / 4 + 8 (h = 0, 1) of them; scores[4 g + 2 h + e] is column
// 8 g + 2 (l % 4) + e of the tile. mma.sync and wgmma leave their sums so.
#pragma once

#include <cuda_bf16.h>

#include "math/bf16.cuh"

constexpr float kHidden = -INFINITY;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A maximum times the scale, by which weights are measured; zero before there is a score. The product is rounded by
// itself: contracted with the subtraction that follows, a maximum that stays would give a factor that is not 1, and a
// row's bits would depend on the tiles of which it sees nothing, hence on where its prompt is cut.
__device__ __forceinline__ float softmax_zero(float peak, float log2_scale) {
  return peak == kHidden ? 0.f : __fmul_rn(peak, log2_scale);
}

// What weights relative to the maximum `most` are multiplied by to be relative to `zero`.
__device__ __forceinline__ float softmax_factor(float most, float log2_scale, float zero) {
  return exp2_fast(__fmul_rn(most, log2_scale) - zero);
}

// The most of the four lanes that share a row.
__device__ __forceinline__ float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float row_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// Running maximum and sum of a lane's two rows (Milakov & Gimelshein 2018, arXiv:1805.02867).
struct PrefillSoftmax {
  int position[2];  // of the lane's rows
  int first, last;  // positions of the warp's first and last row
  int window;
  float log2_scale;
  float most[2] = {kHidden, kHidden};  // score, not scaled
  float sum[2] = {0.f, 0.f};           // of this lane's columns only, until finish()

  // `row` is the warp's first, of `rows` (a PrefillRows).
  template <class Rows>
  __device__ PrefillSoftmax(const Rows& rows, int row) : window(rows.a.window), log2_scale(rows.a.log2_scale) {
    const int mine = row + threadIdx.x % 32 / 4;
    position[0] = rows.position(mine);
    position[1] = rows.position(mine + 8);
    first = rows.position(row);
    last = rows.position(row + 15);
  }

  // Whether some row of the warp does not see all of `tokens` tokens from `token` on.
  __device__ bool hides(int token, int tokens) const { return token + tokens - 1 > first || token <= last - window; }

  template <int kCount>
  __device__ void hide(float (&scores)[kCount], int token) const {
    const int column = token + threadIdx.x % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int high = position[h] - column, low = high - window;
#pragma unroll
      for (int g = 0; g < kCount / 4; g++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          if (8 * g + e > high || 8 * g + e <= low) scores[4 * g + 2 * h + e] = kHidden;
        }
      }
    }
  }

  // Scores become weights relative to the new maximum; `factor` is what older weights must be multiplied by.
  template <int kCount>
  __device__ void update(float (&scores)[kCount], float (&factor)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float peak = most[h];
#pragma unroll
      for (int g = 0; g < kCount / 4; g++) peak = fmaxf(peak, fmaxf(scores[4 * g + 2 * h], scores[4 * g + 2 * h + 1]));
      peak = row_max(peak);
      const float zero = softmax_zero(peak, log2_scale);
      factor[h] = softmax_factor(most[h], log2_scale, zero);
      most[h] = peak;
      float added = 0.f;
#pragma unroll
      for (int g = 0; g < kCount / 4; g++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float& score = scores[4 * g + 2 * h + e];
          score = exp2_fast(fmaf(score, log2_scale, -zero));
          added += score;
        }
      }
      sum[h] = fmaf(sum[h], factor[h], added);
    }
  }

  // After the last tile: the sums over whole rows.
  __device__ void finish() {
#pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = row_sum(sum[h]);
  }
};

// Weights as the A operand of the next product: words 4 k to 4 k + 3 are columns 16 k to 16 k + 15.
template <int kCount>
__device__ __forceinline__ void pack_weights(uint32_t (&packed)[kCount / 2], const float (&weights)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; i++) packed[i] = pack_bf16(weights[2 * i], weights[2 * i + 1]);
}

template <int kCount>
__device__ __forceinline__ void scale_rows(float (&o)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) o[i] *= factor[i / 2 % 2];
}
