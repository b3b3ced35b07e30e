// cuda_fp16.h: what our kernels use of CUDA's header of this name.
#pragma once

#include <bit>
#include <cstdint>

struct __half {
  uint16_t bits;
};

inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
inline float __half2float(__half value) {
  return float(std::bit_cast<_Float16>(value.bits));
}
