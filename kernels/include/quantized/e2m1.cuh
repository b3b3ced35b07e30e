// e2m1.cuh: E2M1 times the scale of its group to bf16, exactly: MXFP4 and NVFP4.
#pragma once

#include "math/bf16.cuh"
#include "quantized/bits.cuh"

// 2^(byte - 13) of an exponent's byte up to 26, twice.
__device__ __forceinline__ uint32_t mxfp4_scale(uint32_t byte) {
  return (byte + 114) * 0x00800080u;
}

// A word of an MXFP4 slice to the A fragment of a step. Each row's four codes choose the upper and the lower bytes of
// E2M1's eight magnitudes; signs lie where the upper bytes have theirs.
__device__ __forceinline__ void bf16_of_mxfp4(uint32_t (&a)[4], uint32_t word, uint32_t upper, uint32_t lower) {
  constexpr uint32_t kHigh[2] = {0x3F3F3F00, 0x40404040}, kLow[2] = {0xC0800000, 0xC0804000}, kZero = 0x80008000;
  const uint32_t codes = word & 0x77777777;
#pragma unroll
  for (int row = 0; row < 2; row++) {
    const uint32_t chosen = codes >> (16 * row), scale = row ? lower : upper;
    const uint32_t high = and_or(word << (4 * row), 0x80808080, permute_bytes(kHigh[0], kHigh[1], chosen));
    const uint32_t low = permute_bytes(kLow[0], kLow[1], chosen);
    a[row] = fma_bf16x2(permute_bytes(low, high, 0x5140), scale, kZero);
    a[row + 2] = fma_bf16x2(permute_bytes(low, high, 0x7362), scale, kZero);
  }
}

// Two bytes of NVFP4's scales, upper and lower row, in bits 0-15 of `bytes`: the scales times 2^126, each twice. An
// f16's bits 14-7 moved to bits 11-4 of a bf16 are 2^98 times too small with the 2^-14 of the format, so 2^224 in all.
__device__ __forceinline__ void nvfp4_scales(uint32_t bytes, uint32_t& upper, uint32_t& lower) {
  constexpr uint32_t kScale = 0x77807780, kZero = 0x80008000;  // 2^112
  uint32_t both = permute_bytes(bytes, 0, 0x4140) << 4;
  both = fma_bf16x2(fma_bf16x2(both, kScale, kZero), kScale, kZero);
  upper = permute_bytes(both, 0, 0x1010), lower = permute_bytes(both, 0, 0x3232);
}

// A word of an NVFP4 slice to the A fragment of a step: E2M1's bits, moved to where bf16 has its exponent's end and
// its mantissa, are 2^126 times too small, subnormal ones too; the scales of nvfp4_scales make up for it.
__device__ __forceinline__ void bf16_of_nvfp4(uint32_t (&a)[4], uint32_t word, uint32_t upper, uint32_t lower) {
  constexpr uint32_t kSign = 0x80008000, kMagnitude = 0x01C001C0, kZero = 0x80008000;
  a[0] = fma_bf16x2(and_or(word, kSign, word >> 3 & kMagnitude), upper, kZero);
  a[1] = fma_bf16x2(and_or(word << 3, kSign, word & kMagnitude), lower, kZero);
  a[2] = fma_bf16x2(and_or(word << 1, kSign, word << 3 & kMagnitude), upper, kZero);
  a[3] = fma_bf16x2(and_or(word << 2, kSign, word << 6 & kMagnitude), lower, kZero);
}
