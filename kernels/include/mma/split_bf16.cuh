// split_bf16.cuh: float32 numbers as sums of two bf16, 16 bits of a number, for matmuls more exact than one bf16
//
// a b = a_high b_high + a_high b_low + a_low b_high, within 2^-16; of an exact bf16 b the middle term is zero.
#pragma once

#include <cstdint>

#include "math/bf16.cuh"

// A pair of numbers: the words of their upper and lower parts.
__device__ __forceinline__ void split_bf16(float first, float second, uint32_t& high, uint32_t& low) {
  high = pack_bf16(first, second);
  low = pack_bf16(first - bf16_low(high), second - bf16_high(high));
}

// The operand A of mma_16x8x16 from two neighbouring 16 x 8 sums: C's layout is A's.
struct SplitOperand {
  uint32_t high[4], low[4];

  __device__ __forceinline__ SplitOperand(const float (&left)[4], const float (&right)[4]) {
    split_bf16(left[0], left[1], high[0], low[0]);
    split_bf16(left[2], left[3], high[1], low[1]);
    split_bf16(right[0], right[1], high[2], low[2]);
    split_bf16(right[2], right[3], high[3], low[3]);
  }
};
