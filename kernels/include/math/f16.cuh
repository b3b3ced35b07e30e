// f16.cuh: arithmetic on pairs of f16 in a 32-bit word, and conversions.
#pragma once

#include <cstdint>

#include "quantized/bits.cuh"

__device__ __forceinline__ uint32_t add_f16x2(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}
__device__ __forceinline__ uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  uint32_t scaled;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(scaled) : "r"(a), "r"(b));
  return scaled;
}

// Rounded to nearest even; what is too large becomes the largest finite f16. The lower half is the first.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// The f16 in the lower half of a word, and in the upper half.
__device__ __forceinline__ float f16_low(uint32_t pair) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<uint16_t>(pair)));
  return value;
}
__device__ __forceinline__ float f16_high(uint32_t pair) {
  return f16_low(pair >> 16);
}

// Two E4M3, rounded to nearest even; what is too large becomes 448. The lower byte is the first.
__device__ __forceinline__ uint16_t e4m3_from_floats(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

// Two E4M3 in the lower half of a word as f16, exact.
__device__ __forceinline__ uint32_t f16_from_e4m3(uint32_t pair) {
  uint32_t values;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(values) : "h"(static_cast<uint16_t>(pair)));
  return values;
}
