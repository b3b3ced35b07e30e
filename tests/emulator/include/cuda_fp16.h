// cuda_fp16.h: what our kernels use of CUDA's header of this name.
#pragma once

#include <bit>
#include <cstdint>

#include "cuda.h"

struct __half {
  uint16_t bits;
};

inline __half __float2half_rn(float value) {
  return {std::bit_cast<uint16_t>(_Float16(value))};
}

inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
inline float __half2float(__half value) {
  return float(std::bit_cast<_Float16>(value.bits));
}

struct __half2 {
  __half x, y;

  __half2() = default;
  __half2(float low, float high) : x(__float2half_rn(low)), y(__float2half_rn(high)) {}
};

inline __half2 __floats2half2_rn(float low, float high) {
  return {low, high};
}
inline float2 __half22float2(__half2 pair) {
  return {__half2float(pair.x), __half2float(pair.y)};
}
