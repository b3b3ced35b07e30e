// int4.cuh: int4, stored with 8 added or with a zero point, to bf16, exactly.
//
// A nibble n is the mantissa's end of 128 + n, from which 128 and the zero point are subtracted.
#pragma once

#include "math/bf16.cuh"
#include "quantized/bits.cuh"

// -(128 + zero), twice, of a zero point of up to 127.
__device__ __forceinline__ uint32_t int4_offset(uint32_t zero) {
  return zero * 0x00010001u | 0xC300C300u;
}

// A word of a packed slice, bytes [2 columns][upper, lower], left column low, to the A fragment of a step; `upper` and
// `lower` are the offsets of the two rows.
__device__ __forceinline__ void bf16_of_int4(uint32_t (&a)[4], uint32_t word, uint32_t upper, uint32_t lower) {
  const uint32_t large = in_register(0x43004300);
  a[0] = fma_bf16x2(and_or(word, 0x000F000F, large), 0x3F803F80, upper);
  a[1] = fma_bf16x2(and_or(word >> 8, 0x000F000F, large), 0x3F803F80, lower);
  a[2] = fma_bf16x2(and_or(word >> 4, 0x000F000F, large), 0x3F803F80, upper);
  a[3] = fma_bf16x2(and_or(word >> 12, 0x000F000F, large), 0x3F803F80, lower);
}
