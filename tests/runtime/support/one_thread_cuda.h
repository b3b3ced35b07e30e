// one_thread_cuda.h: CUDA's words for a single thread of a single block, so that g++ compiles parts of a kernel.
//
// Enough for code whose threads each take their own elements; barriers and shuffles do nothing.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

using std::isfinite, std::max, std::min;

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#define __launch_bounds__(...)

struct Index {
  int x = 0, y = 0;
};
static Index threadIdx, blockIdx, blockDim{1, 1}, gridDim{1, 1};
struct uint2 {
  uint32_t x, y;
};
struct float4 {
  float x, y, z, w;
};
struct uint4 {
  uint32_t x, y, z, w;
};

inline void __syncthreads() {}
inline void __threadfence() {}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}

template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class To, class From>
To same_bits(From from) {
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline float __int_as_float(int bits) {
  return same_bits<float>(bits);
}
inline int __float_as_int(float x) {
  return same_bits<int>(x);
}
inline float __uint_as_float(uint32_t bits) {
  return same_bits<float>(bits);
}
inline uint32_t __float_as_uint(float x) {
  return same_bits<uint32_t>(x);
}
inline uint32_t __float2uint_rn(float x) {
  return uint32_t(std::nearbyint(x));
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int) {
  return value;
}
template <class T>
T __shfl_up_sync(unsigned, T value, int) {
  return value;
}
template <class T>
T atomicAdd(T* sum, T value) {
  const T before = *sum;
  *sum += value;
  return before;
}

inline void pdl_launch_dependents() {}
inline void pdl_wait() {}
