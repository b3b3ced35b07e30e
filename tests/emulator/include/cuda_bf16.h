// cuda_bf16.h: what our kernels use of CUDA's header of this name.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 value) {
  return std::bit_cast<float>(uint32_t(value.bits) << 16);
}

inline __nv_bfloat16 __float2bfloat16(float value) {
  if (std::isnan(value)) return {0x7fff};
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) {
  return value.bits;
}

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  return __float2bfloat16(value);
}

inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 pair) {
  return {pair.x, pair.x};
}

inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 pair) {
  return {pair.y, pair.y};
}

inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16(low), __float2bfloat16(high)};
}
