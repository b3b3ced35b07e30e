// codes.cuh: codes of quantized keys and values: 16 channels in registers to bytes and back.
//
// A format is a struct with kBits, kHasScale and kIsRotated; `encode` and `decode` of 16 channels of a row; `swaps`
// decodes the upper eight first. What the codes mean is defined in ops/reference/kv_cache/. Decoded values are float16,
// without the layer's scale; a code times its scale is exact but for turbo's, which round once.
#pragma once

#include <cuda_fp8.h>

#include "math/bf16.cuh"

constexpr int kGroupChannels = 16;  // of a row, that a thread codes at once and that share a scale

template <int kBits>
struct Codes {
  static constexpr int kBytes = kGroupChannels * kBits / 8, kWords = (kBytes + 3) / 4;
  uint32_t words[kWords];
  unsigned scale = 0;

  // The address is a multiple of 16 for 8 bits, of 8 for 4, of 2 for 3.
  __device__ __forceinline__ void load(const void* from) {
    if constexpr (kBits == 8) {
      const uint4 all = *static_cast<const uint4*>(from);
      words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    } else if constexpr (kBits == 4) {
      const uint2 all = *static_cast<const uint2*>(from);
      words[0] = all.x, words[1] = all.y;
    } else {
      const uint16_t* halves = static_cast<const uint16_t*>(from);
      words[0] = halves[0] | static_cast<uint32_t>(halves[1]) << 16, words[1] = halves[2];
    }
  }
  __device__ __forceinline__ void load_shared(uint32_t from) {
    if constexpr (kBits == 8) {
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(from)
                   : "memory");
    } else if constexpr (kBits == 4) {
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(from) : "memory");
    } else {
      uint16_t halves[3];
#pragma unroll
      for (int i = 0; i < 3; i++) {
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(halves[i]) : "r"(from + 2 * i) : "memory");
      }
      words[0] = halves[0] | static_cast<uint32_t>(halves[1]) << 16, words[1] = halves[2];
    }
  }
  __device__ __forceinline__ void store(void* to) const {
    if constexpr (kBits == 8) {
      *static_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    } else if constexpr (kBits == 4) {
      *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else {
      uint16_t* halves = static_cast<uint16_t*>(to);
      halves[0] = words[0], halves[1] = words[0] >> 16, halves[2] = words[1];
    }
  }
};

__device__ __forceinline__ uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  const __half2 c = __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&c);
}
__device__ __forceinline__ float2 from_f16x2(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

__device__ __forceinline__ unsigned to_e4m3(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}
// Two E4M3 as float16, exact.
__device__ __forceinline__ uint32_t from_e4m3x2(unsigned pair) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return halves.x | static_cast<uint32_t>(halves.y) << 16;
}

// A byte of scale without sign, 5 exponent and 3 mantissa bits: a float16, shifted. Rounded to nearest even.
__device__ __forceinline__ unsigned to_e5m3(float x) {
  if (x != x) return 0xffu;
  const unsigned bits = __float_as_uint((x < 0.f ? 0.f : x) * 0x1p-112f);
  return min((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20, 0xf7u);
}
__device__ __forceinline__ float from_e5m3(unsigned code) {
  return code > 0xf7u ? __uint_as_float(0x7fc00000u) : __uint_as_float(code << 20) * 0x1p112f;
}

// The largest magnitude of 16 channels, or NaN if one is.
__device__ __forceinline__ float largest(const float (&x)[kGroupChannels]) {
  float result = 0.f;
#pragma unroll
  for (int i = 0; i < kGroupChannels; i++) result = fabsf(x[i]) <= result || result != result ? result : fabsf(x[i]);
  return result;
}

// Magnitudes of eight codes as float16, upper and lower bytes: four to a word, by code.
struct Magnitudes {
  uint32_t upper[2], lower[2];
};

// Eight codes of a sign and three bits, a nibble each, as float16 pairs.
__device__ __forceinline__ void decode_nibbles(uint32_t nibbles, const Magnitudes& of, uint32_t (&pairs)[4]) {
  const uint32_t shifted = nibbles << 4;  // so that every sign is the upper bit of a byte, of one word or the other
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const uint32_t selected = nibbles >> 16 * half & 0x7777u,
                   signs = __byte_perm(shifted, nibbles, half ? 0x7362 : 0x5140);
    const uint32_t upper = __byte_perm(of.upper[0], of.upper[1], selected) | (signs & 0x80808080u);
    const uint32_t lower = __byte_perm(of.lower[0], of.lower[1], selected);
    pairs[2 * half] = __byte_perm(lower, upper, 0x5140);
    pairs[2 * half + 1] = __byte_perm(lower, upper, 0x7362);
  }
}

// Sixteen codes of nibbles times their scale, a float16; `swaps`: the upper eight come first.
__device__ __forceinline__ void decode_scaled(const uint32_t (&nibbles)[2], const Magnitudes& of, unsigned scale,
                                              bool swaps, uint32_t (&pairs)[8]) {
  const uint32_t factor = scale | scale << 16;
#pragma unroll
  for (int word = 0; word < 2; word++) {
    uint32_t four[4];
    decode_nibbles(swaps ? nibbles[1 - word] : nibbles[word], of, four);
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[4 * word + i] = multiply_f16x2(four[i], factor);
  }
}

struct Fp8 {
  static constexpr int kBits = 8;
  static constexpr bool kHasScale = false, kIsRotated = false;

  __device__ __forceinline__ static void encode(const float (&x)[kGroupChannels], float layer_scale, Codes<8>& codes) {
    const float inverse = 1.f / layer_scale;
#pragma unroll
    for (int word = 0; word < 4; word++) {
      codes.words[word] = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) codes.words[word] |= to_e4m3(x[4 * word + i] * inverse) << 8 * i;
    }
  }
  __device__ __forceinline__ static void decode(const Codes<8>& codes, bool swaps, uint32_t (&pairs)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t word = swaps ? codes.words[(i / 2 + 2) % 4] : codes.words[i / 2];
      pairs[i] = from_e4m3x2(word >> i % 2 * 16 & 0xffffu);
    }
  }
};

struct Turbo8 : Fp8 {
  static constexpr bool kIsRotated = true;
};

struct NvFp4 {
  static constexpr int kBits = 4;
  static constexpr bool kHasScale = true, kIsRotated = false;

  __device__ __forceinline__ static void encode(const float (&x)[kGroupChannels], float layer_scale, Codes<4>& codes) {
    codes.scale = to_e4m3(largest(x) * (1.f / (6.f * layer_scale)));
    const float step = from_f16x2(from_e4m3x2(codes.scale)).x * layer_scale, inverse = step > 0.f ? 1.f / step : 0.f;
    codes.words[0] = codes.words[1] = 0;
#pragma unroll
    for (int i = 0; i < kGroupChannels; i++) codes.words[i / 8] |= to_e2m1(x[i] * inverse) << i % 8 * 4;
  }
  __device__ __forceinline__ static void decode(const Codes<4>& codes, bool swaps, uint32_t (&pairs)[8]) {
    // 0, 0.5, 1, 1.5, 2, 3, 4, 6
    constexpr Magnitudes kMagnitudes = {{0x3e3c3800u, 0x46444240u}, {0u, 0u}};
    decode_scaled(codes.words, kMagnitudes, from_e4m3x2(codes.scale) & 0xffffu, swaps, pairs);
  }

 private:
  // To nearest, ties to even.
  __device__ __forceinline__ static unsigned to_e2m1(float x) {
    const float a = fabsf(x);
    const unsigned code =
        (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.f);
    return code | __float_as_uint(x) >> 31 << 3;
  }
};

// Lloyd-Max codebooks for a Gaussian: bf16 of the magnitudes, ascending, four to a word.
template <int kBits>
__device__ constexpr unsigned lloyd_max(int code) {
  constexpr uint64_t kOf4[2] = {0x3f713f283ec73e03u, 0x402f40043fcf3fa1u}, kOf3 = 0x400a3fac3f423e7bu;
  return static_cast<unsigned>((kBits == 3 ? kOf3 : kOf4[code / 4]) >> code % 4 * 16 & 0xffffu);
}

template <int kOfBits>
struct Turbo {
  static constexpr int kBits = kOfBits;
  static constexpr bool kHasScale = true, kIsRotated = true;
  static constexpr int kMagnitudes = 1 << kBits - 1, kRefinements = 2;

  __device__ __forceinline__ static void encode(const float (&x)[kGroupChannels], float, Codes<kBits>& codes) {
    float weighted[kGroupChannels], squares[kGroupChannels];
#pragma unroll
    for (int i = 0; i < kGroupChannels; i++) weighted[i] = __fmul_rn(x[i], x[i]);
    float fitted = sqrtf(__fmul_rn(sum(weighted), 0.0625f));
#pragma unroll
    for (int round = 0; round < kRefinements; round++) {
      const float inverse = fitted > 0.f ? 1.f / fitted : 0.f;
#pragma unroll
      for (int i = 0; i < kGroupChannels; i++) {
        const float scaled = x[i] * inverse, level = copysignf(magnitude(nearest(scaled)), scaled);
        weighted[i] = __fmul_rn(x[i], level), squares[i] = __fmul_rn(level, level);
      }
      fitted = __fdiv_rn(sum(weighted), sum(squares));
    }
    codes.scale = to_e5m3(fitted);
    const float step = from_e5m3(codes.scale), inverse = step > 0.f ? 1.f / step : 0.f;
    uint64_t all = 0;
#pragma unroll
    for (int i = 0; i < kGroupChannels; i++) {
      const float scaled = x[i] * inverse;
      const unsigned code = nearest(scaled) | __float_as_uint(scaled) >> 31 << kBits - 1;
      all |= static_cast<uint64_t>(code) << i * kBits;
    }
    codes.words[0] = static_cast<uint32_t>(all), codes.words[1] = static_cast<uint32_t>(all >> 32);
  }

  __device__ __forceinline__ static void decode(const Codes<kBits>& codes, bool swaps, uint32_t (&pairs)[8]) {
    constexpr Magnitudes kTable = table();
    uint32_t nibbles[2] = {codes.words[0], codes.words[1]};
    if constexpr (kBits == 3) {
      nibbles[0] = spread(codes.words[0] & 0xffffffu);
      nibbles[1] = spread(codes.words[0] >> 24 | codes.words[1] << 8);
    }
    decode_scaled(nibbles, kTable, codes.scale << 7, swaps, pairs);
  }

 private:
  __device__ __forceinline__ static float magnitude(unsigned code) {
    float result = __uint_as_float(lloyd_max<kBits>(0) << 16);
#pragma unroll
    for (int i = 1; i < kMagnitudes; i++) {
      result = code >= i ? __uint_as_float(lloyd_max<kBits>(i) << 16) : result;
    }
    return result;
  }
  // A magnitude on a bound takes the lower level.
  __device__ __forceinline__ static unsigned nearest(float x) {
    unsigned code = 0;
#pragma unroll
    for (int i = 1; i < kMagnitudes; i++) {
      const float below = __uint_as_float(lloyd_max<kBits>(i - 1) << 16);
      const float above = __uint_as_float(lloyd_max<kBits>(i) << 16);
      code += fabsf(x) > (above + below) * 0.5f;
    }
    return code;
  }
  // The lower and the upper half, then neighbours, three times.
  __device__ __forceinline__ static float sum(float (&of)[kGroupChannels]) {
#pragma unroll
    for (int i = 0; i < 8; i++) of[i] = __fadd_rn(of[i], of[i + 8]);
#pragma unroll
    for (int count = 4; count > 0; count /= 2) {
#pragma unroll
      for (int i = 0; i < count; i++) of[i] = __fadd_rn(of[2 * i], of[2 * i + 1]);
    }
    return of[0];
  }
  // Eight codes of three bits, a nibble each, their sign in its upper bit.
  __device__ __forceinline__ static uint32_t spread(uint32_t codes) {
    codes = (codes & 0xfffu) | (codes & 0xfff000u) << 4;
    codes = (codes & 0x3f003fu) | (codes & 0xfc00fc0u) << 2;
    codes = (codes & 0x7070707u) | (codes & 0x38383838u) << 1;
    return (codes & 0x33333333u) | (codes & 0x44444444u) << 1;
  }
  __device__ static constexpr Magnitudes table() {
    Magnitudes result = {};
    for (int i = 0; i < kMagnitudes; i++) {
      const unsigned level = lloyd_max<kBits>(i), half = ((level >> 7) - 112) << 10 | (level & 0x7fu) << 3;
      result.upper[i / 4] |= (half >> 8) << i % 4 * 8;
      result.lower[i / 4] |= (half & 0xffu) << i % 4 * 8;
    }
    return result;
  }
};
