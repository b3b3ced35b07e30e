// bf16.cuh: 16-byte loads and stores of eight bf16, and conversion to float32 and back.
//
// bf16 is the upper half of a float32: widening is exact, narrowing rounds to nearest even.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

using bf16 = __nv_bfloat16;

constexpr int kBf16Vec = 8;  // bf16 in 16 bytes, the widest access of a thread

// The two bf16 of a 32-bit word, the lower address first.
__device__ __forceinline__ float bf16_low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float bf16_high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// a b + c of two pairs, each rounded once; subnormal numbers count.
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ void unpack8(const uint4& packed, float (&values)[8]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    values[2 * i] = bf16_low(words[i]);
    values[2 * i + 1] = bf16_high(words[i]);
  }
}

__device__ __forceinline__ uint4 pack8(const float (&values)[8]) {
  return make_uint4(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]), pack_bf16(values[4], values[5]),
                    pack_bf16(values[6], values[7]));
}

// 16-byte accesses; the address must be a multiple of 16.
__device__ __forceinline__ uint4 load16(const void* address) {
  return *static_cast<const uint4*>(address);
}
__device__ __forceinline__ void store16(void* address, const uint4& value) {
  *static_cast<uint4*>(address) = value;
}

__device__ __forceinline__ void load8(const bf16* address, float (&values)[8]) {
  unpack8(load16(address), values);
}
__device__ __forceinline__ void store8(bf16* address, const float (&values)[8]) {
  store16(address, pack8(values));
}

// Eight float32, in two accesses of 16 bytes.
__device__ __forceinline__ void load8(const float* address, float (&values)[8]) {
  const float4 a = reinterpret_cast<const float4*>(address)[0], b = reinterpret_cast<const float4*>(address)[1];
  values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
  values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
}
__device__ __forceinline__ void store8(float* address, const float (&values)[8]) {
  reinterpret_cast<float4*>(address)[0] = make_float4(values[0], values[1], values[2], values[3]);
  reinterpret_cast<float4*>(address)[1] = make_float4(values[4], values[5], values[6], values[7]);
}
