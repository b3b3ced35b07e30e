// e4m3.cuh: E4M3 to bf16, exactly.
//
// The bits of an E4M3, moved to where bf16 has its exponent and mantissa, are 2^120 times too small, subnormal ones
// too. That takes four instructions for two numbers. cvt to f16 (sm_89) and on to bf16 would be as many, at a quarter
// of their rate. A NaN becomes 480.
#pragma once

#include "math/bf16.cuh"
#include "quantized/bits.cuh"

// Two words of a packed slice, left and right columns, bytes [upper, lower][2 columns], to the A fragment of a step.
__device__ __forceinline__ void bf16_of_e4m3(uint32_t (&a)[4], uint32_t left, uint32_t right) {
  constexpr uint32_t kUpper = 0x9180, kLower = 0xB3A2;  // a byte and its sign in each half
  constexpr uint32_t kScale = 0x7B807B80, kZero = 0x80008000;
  a[0] = fma_bf16x2(permute_bytes(left, 0, kUpper) << 4 & 0x87F087F0, kScale, kZero);
  a[1] = fma_bf16x2(permute_bytes(left, 0, kLower) << 4 & 0x87F087F0, kScale, kZero);
  a[2] = fma_bf16x2(permute_bytes(right, 0, kUpper) << 4 & 0x87F087F0, kScale, kZero);
  a[3] = fma_bf16x2(permute_bytes(right, 0, kLower) << 4 & 0x87F087F0, kScale, kZero);
}
