// prefill_softmax.cuh: online softmax of prefill attention, a KV tile at a time, on tensor-core fragments.
//
// A warp has 16 rows. Its lane has rows l / 4 and l / 4 + 8 (h = 0, 1) of them; scores[4 g + 2 h + e] is column
// 8 g + 2 (l % 4) + e of the tile, which is the accumulator layout of mma.sync and wgmma.
#pragma once

#include <cuda_bf16.h>

#include "math/bf16.cuh"

constexpr float kMasked = -INFINITY;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Return the maximum times the scale, which weights are relative to; zero before there is a score. It is rounded by
// itself: contracted with the subtraction that follows, an unchanged maximum would give a factor that is not 1, and a
// row's bits would depend on tiles that are masked for it, hence on how its prompt is chunked.
__device__ __forceinline__ float softmax_zero(float peak, float log2_scale) {
  return peak == kMasked ? 0.f : __fmul_rn(peak, log2_scale);
}

// Return the factor that turns weights relative to `maximum` into weights relative to `zero`.
__device__ __forceinline__ float softmax_factor(float maximum, float log2_scale, float zero) {
  return exp2_fast(__fmul_rn(maximum, log2_scale) - zero);
}

// Maximum over the four lanes that share a row.
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
  int position[2];  // positions of the lane's rows
  int first, last;  // positions of the warp's first and last row
  int window;
  float log2_scale;
  float maximum[2] = {kMasked, kMasked};  // score, not scaled
  float sum[2] = {0.f, 0.f};              // of this lane's columns only, until finish()

  // `row` is the warp's first, of `rows` (a PrefillRows).
  template <class Rows>
  __device__ PrefillSoftmax(const Rows& rows, int row) : window(rows.a.window), log2_scale(rows.a.log2_scale) {
    const int mine = row + threadIdx.x % 32 / 4;
    position[0] = rows.position(mine);
    position[1] = rows.position(mine + 8);
    first = rows.position(row);
    last = rows.position(row + 15);
  }

  // Return whether some row of the warp does not attend to all `tokens` tokens from `token` on.
  __device__ bool needs_mask(int token, int tokens) const {
    return token + tokens - 1 > first || token <= last - window;
  }

  template <int kCount>
  __device__ void mask(float (&scores)[kCount], int token) const {
    const int column = token + threadIdx.x % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int high = position[h] - column, low = high - window;
#pragma unroll
      for (int g = 0; g < kCount / 4; g++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          if (8 * g + e > high || 8 * g + e <= low) scores[4 * g + 2 * h + e] = kMasked;
        }
      }
    }
  }

  // Turn scores into weights relative to the new maximum; `factor` rescales older weights.
  template <int kCount>
  __device__ void update(float (&scores)[kCount], float (&factor)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float peak = maximum[h];
#pragma unroll
      for (int g = 0; g < kCount / 4; g++) peak = fmaxf(peak, fmaxf(scores[4 * g + 2 * h], scores[4 * g + 2 * h + 1]));
      peak = row_max(peak);
      const float zero = softmax_zero(peak, log2_scale);
      factor[h] = softmax_factor(maximum[h], log2_scale, zero);
      maximum[h] = peak;
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

  // After the last tile: sum over complete rows.
  __device__ void finish() {
#pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = row_sum(sum[h]);
  }
};

// Pack weights as the A operand of the next matrix product: words 4 k to 4 k + 3 are columns 16 k to 16 k + 15.
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
