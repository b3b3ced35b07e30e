// activation_types.cuh: the two-byte types of a GEMM's activations: what the phase before rounds to.
//
// bf16 for bf16 weights. f16 for quantized ones, which unpack to f16 in fewer instructions; it saturates.
#pragma once

#include "math/bf16.cuh"
#include "math/f16.cuh"

struct Bf16Activations {
  static __device__ __forceinline__ uint16_t round(float x) { return __bfloat16_as_ushort(__float2bfloat16(x)); }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_bf16(low, high); }
};

struct F16Activations {
  static __device__ __forceinline__ uint16_t round(float x) { return static_cast<uint16_t>(pack_f16(x, 0.f)); }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_f16(low, high); }
};
