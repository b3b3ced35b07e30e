// e2m1_fields.cuh: E2M1 in fields of bf16, times the scale of its group, exactly: MXFP4 of experts.
//
// A number's field is its sign at bit 15 and its magnitude at bits 8 to 6, where bf16 has its sign, its exponent's end
// and its mantissa's beginning: bf16 that is 2^126 too small, subnormal ones too. Two numbers lie in the halves of a
// word. A packed word has four such pairs: the first where it belongs, two that a shift or rotation brings there, and
// the fourth as what two shifts of the word differ in, since four places do not fit side by side.
//
// Eight numbers take four masks, four shifts, of which the two to the left may be IMAD, and four multiplications: 6
// instructions of the ALU, which has half rate. Choosing and interleaving bytes as e2m1.cuh does takes 14.
#pragma once

#include "math/bf16.cuh"
#include "quantized/bits.cuh"

constexpr uint32_t kE2m1Fields = 0x81C081C0;

// Pair 0 to 3 of a packed word.
__device__ __forceinline__ uint32_t e2m1_pair(uint32_t word, int pair) {
  if (pair == 0) return word & kE2m1Fields;
  if (pair == 1) return word << 4 & kE2m1Fields;
  if (pair == 2) return (word >> 6 | word << 26) & kE2m1Fields;
  return (word << 6 ^ word >> 2) & kE2m1Fields;
}

// The packed word of four pairs; that of pairs of zeros and of others may be XORed.
__device__ __forceinline__ uint32_t e2m1_word(const uint32_t (&pairs)[4]) {
  const uint32_t word = pairs[0] | pairs[1] >> 4 | pairs[2] << 6 | pairs[2] >> 26;
  const uint32_t missing = pairs[3] ^ e2m1_pair(word, 3);
  uint32_t chain = missing >> 6 & 0x02020202;  // a bit here is one of two bits of a pair, 8 apart
  chain ^= chain >> 8;
  chain ^= chain >> 16;
  return word | chain | (missing >> 6 & 0x00010001) | (missing << 2 & 0x04000400);
}

// 2^(byte + 101) of two bytes of exponents up to 26, upper and lower row, of a group of 32 columns: 0 or 1.
__device__ __forceinline__ uint32_t mxfp4_scales(uint32_t bytes, int group) {
  return permute_bytes(bytes, 0, group ? 0x4342 : 0x4140) * 0x80 + 0x72007200;
}

// A pair times the scale of its row, which an operand takes from either half: E2M1 times 2^(byte - 25).
__device__ __forceinline__ uint32_t scaled_pair(uint32_t pair, uint32_t scales, int row) {
  const auto& both = reinterpret_cast<const __nv_bfloat162&>(scales);
  const __nv_bfloat162 own = row ? __high2bfloat162(both) : __low2bfloat162(both);
  return fma_bf16x2(pair, reinterpret_cast<const uint32_t&>(own), 0x80008000);
}
