// activation_types.cuh: the two-byte types of a GEMM's activations: what the phase before rounds to.
//
// bf16 for bf16 weights. f16 for quantized ones, which unpack to f16 in fewer instructions. Its largest number is
// 65,504, and what is larger becomes that; so numbers are stored times powers of two, which are divided out of the
// GEMM's sums: gated ones times kGatedUnit, a row of the residual times its unit (activation_stream.cuh).
#pragma once

#include "math/bf16.cuh"
#include "math/f16.cuh"
#include "mma/warp_mma.cuh"

struct Bf16Activations {
  static constexpr float kGatedUnit = 1.f;
  static __device__ __forceinline__ uint16_t round(float x) { return __bfloat16_as_ushort(__float2bfloat16(x)); }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  static __device__ __forceinline__ float low(uint32_t pair) { return bf16_low(pair); }
  static __device__ __forceinline__ float high(uint32_t pair) { return bf16_high(pair); }
  static __device__ __forceinline__ void mma(float* c, const uint32_t* a, const uint32_t* b) { mma_16x8x16(c, a, b); }
};

struct F16Activations {
  static constexpr float kGatedUnit = 0x1p-3f;  // 524,032 at most; below 2^-11 they lose bits, one by one
  static __device__ __forceinline__ uint16_t round(float x) { return static_cast<uint16_t>(pack_f16(x, 0.f)); }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_f16(low, high); }
  static __device__ __forceinline__ float low(uint32_t pair) { return f16_low(pair); }
  static __device__ __forceinline__ float high(uint32_t pair) { return f16_high(pair); }
  static __device__ __forceinline__ void mma(float* c, const uint32_t* a, const uint32_t* b) {
    mma_16x8x16_f16(c, a, b);
  }
};
