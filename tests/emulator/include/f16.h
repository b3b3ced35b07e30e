// f16.h: f16 and E4M3 as floats, and PTX's arithmetic on pairs of f16 and of bf16.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "cuda_bf16.h"

namespace emulator {

struct F16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};

// A number of `exponents` bits of exponent and `mantissa` bits, without its sign; E4M3 has one NaN and no infinity.
inline float unsigned_float(uint32_t bits, int exponents, int mantissa, bool has_infinity) {
  const uint32_t top = (1u << exponents) - 1, exponent = bits >> mantissa, rest = bits & ((1u << mantissa) - 1);
  const int bias = (1 << (exponents - 1)) - 1;
  if (has_infinity && exponent == top) return rest ? NAN : INFINITY;
  if (!has_infinity && exponent == top && rest == (1u << mantissa) - 1) return NAN;
  if (exponent == 0) return std::ldexp(float(rest), 1 - bias - mantissa);
  return std::ldexp(float(rest | 1u << mantissa), int(exponent) - bias - mantissa);
}

// By the bits: a library's frexp and ldexp took most of an emulated GEMM's time.
inline float to_float(F16 value) {
  const uint32_t sign = uint32_t(value.bits & 0x8000) << 16;
  const float size = std::bit_cast<float>(uint32_t(value.bits & 0x7fff) << 13) * 0x1p112f;  // exponents of 8 bits
  const uint32_t bits = std::bit_cast<uint32_t>(size);
  return std::bit_cast<float>(sign | (size >= 65536.f ? bits | 0x7f800000 : bits));
}

// The bits of a float without a sign in a format whose exponents are smaller by `bias`, with `mantissa` bits, rounded
// to nearest even; none too large for it.
inline uint32_t rounded_bits(float size, int bias, int mantissa) {
  const uint32_t bits = std::bit_cast<uint32_t>(size), least = uint32_t(bias + 1) << 23;
  if (bits < least) {  // subnormal: the last bit of this sum is that of the result
    const float unit = std::bit_cast<float>(uint32_t(bias + 24 - mantissa) << 23);
    return std::bit_cast<uint32_t>(size + unit) - std::bit_cast<uint32_t>(unit);
  }
  const int dropped = 23 - mantissa;
  return (bits + (1u << (dropped - 1)) - 1 + (bits >> dropped & 1) - (uint32_t(bias) << 23)) >> dropped;
}

// Rounded to nearest even; saturates if asked to.
inline F16 to_f16(float value, bool saturates = false) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (std::isnan(value)) return {0x7fff};
  if (size >= 65520.f) return {uint16_t(sign | (saturates ? 0x7bff : 0x7c00))};
  return {uint16_t(sign | rounded_bits(size, 112, 10))};
}

inline F16 e4m3_to_f16(uint32_t code) {
  static const std::array<F16, 128> sizes = [] {
    std::array<F16, 128> all;
    for (uint32_t bits = 0; bits < 128; bits++) all[bits] = to_f16(unsigned_float(bits, 4, 3, false));
    return all;
  }();
  const uint16_t size = sizes[code & 0x7f].bits;
  return {size == 0x7fff ? size : uint16_t(size | (code & 0x80) << 8)};
}

// Rounded to nearest even; what is too large becomes 448.
inline uint32_t to_e4m3(float value) {
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  const float size = std::fabs(value);
  if (std::isnan(value)) return 0x7f;
  return sign | (size >= 448.f ? 0x7e : rounded_bits(size, 120, 3));
}

inline uint32_t pair_of(F16 low, F16 high) {
  return uint32_t(high.bits) << 16 | low.bits;
}

template <class Operation>
uint32_t by_halves(uint32_t a, uint32_t b, Operation operation) {
  const auto half = [&](int shift) {
    return to_f16(operation(to_float({uint16_t(a >> shift)}), to_float({uint16_t(b >> shift)})));
  };
  return pair_of(half(0), half(16));
}

}  // namespace emulator

inline void ptx_add_rn_f16x2(uint32_t& sum, uint32_t a, uint32_t b) {
  sum = emulator::by_halves(a, b, [](float x, float y) { return x + y; });
}
inline void ptx_mul_rn_f16x2(uint32_t& scaled, uint32_t a, uint32_t b) {
  scaled = emulator::by_halves(a, b, [](float x, float y) { return x * y; });
}
inline void ptx_cvt_rn_satfinite_f16x2_f32(uint32_t& pair, float high, float low) {
  pair = emulator::pair_of(emulator::to_f16(low, true), emulator::to_f16(high, true));
}
inline void ptx_cvt_f32_f16(float& value, uint16_t bits) {
  value = emulator::to_float({bits});
}
inline void ptx_cvt_rn_satfinite_e4m3x2_f32(uint16_t& pair, float high, float low) {
  pair = uint16_t(emulator::to_e4m3(high) << 8 | emulator::to_e4m3(low));
}
inline void ptx_cvt_rn_f16x2_e4m3x2(uint32_t& pair, uint16_t codes) {
  pair = emulator::pair_of(emulator::e4m3_to_f16(codes & 255), emulator::e4m3_to_f16(codes >> 8));
}
inline void ptx_lop3_b32(uint32_t& word, uint32_t a, uint32_t b, uint32_t c, int table) {
  uint32_t result = 0;
  for (int row = 0; row < 8; row++) {
    if (table >> row & 1) result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
  }
  word = result;
}
inline void ptx_mov_b32(uint32_t& word, uint32_t constant) {
  word = constant;
}
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  uint32_t word = 0;
  for (int i = 0; i < 4; i++) word |= uint32_t(bytes >> (selector >> (4 * i) & 7) * 8 & 255) << (8 * i);
  return word;
}
// A nibble of 8 and more repeats the sign of the byte that it names.
inline void ptx_prmt_b32(uint32_t& word, uint32_t low, uint32_t high, uint32_t selector) {
  const uint32_t bytes = __byte_perm(low, high, selector);
  word = 0;
  for (int i = 0; i < 32; i += 8) {
    const uint32_t byte = bytes >> i & 255, is_sign = selector >> (i / 2) & 8;
    word |= (is_sign ? (byte & 128 ? 255u : 0u) : byte) << i;
  }
}
// A double has all bits of a times b, and of their sum with c all that a bf16 keeps.
template <class Operation>
void each_bf16(uint32_t& word, Operation result, auto... words) {
  const auto half = [](uint32_t pair, int i) { return double(__bfloat162float({uint16_t(pair >> i)})); };
  const auto bits = [&](int i) { return uint32_t(__float2bfloat16(float(result(half(words, i)...))).bits) << i; };
  word = bits(0) | bits(16);
}
inline void ptx_fma_rn_bf16x2(uint32_t& word, uint32_t a, uint32_t b, uint32_t c) {
  each_bf16(word, [](double x, double y, double z) { return x * y + z; }, a, b, c);
}
inline void ptx_mul_rn_bf16x2(uint32_t& word, uint32_t a, uint32_t b) {
  each_bf16(word, [](double x, double y) { return x * y; }, a, b);
}
inline void ptx_sub_rn_bf16x2(uint32_t& word, uint32_t a, uint32_t b) {
  each_bf16(word, [](double x, double y) { return x - y; }, a, b);
}
// Both f16 of a word.
inline void ptx_block_mov_b32(float& low, float& high, uint32_t both) {
  low = emulator::to_float(emulator::F16{uint16_t(both)}),
  high = emulator::to_float(emulator::F16{uint16_t(both >> 16)});
}
