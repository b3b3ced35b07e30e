// int8.cuh: int8, stored with 128 added, to bf16, exactly.
//
// The lower seven bits are the mantissa of a number from 128 to 255; the upper bit decides whether 128 or 256 is to be
// subtracted.
#pragma once

#include "math/bf16.cuh"
#include "quantized/bits.cuh"

// Two words of a packed slice, left and right columns, bytes [upper, lower][2 columns], to the A fragment of a step.
__device__ __forceinline__ void bf16_of_int8(uint32_t (&a)[4], uint32_t left, uint32_t right) {
  const uint32_t large = in_register(0x43004300), minus_256 = in_register(0xC380C380);
  const uint32_t bytes[4] = {permute_bytes(left, 0, 0x4140), permute_bytes(left, 0, 0x4342),
                             permute_bytes(right, 0, 0x4140), permute_bytes(right, 0, 0x4342)};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    a[i] = fma_bf16x2(and_or(bytes[i], 0x007F007F, large), 0x3F803F80, and_xor(bytes[i], 0x00800080, minus_256));
  }
}
