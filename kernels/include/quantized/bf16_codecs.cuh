// bf16_codecs.cuh: packed quantized weights in shared memory to A fragments of bf16 in registers.
//
// The order is that of wisp_plan/quantization/packed_format.py: a warp's slice is 16 rows, 64 bytes of codes a lane as
// [4][lane][16], then scales and zero points of groups. A step is 16 columns, a fragment of it four words: row l / 4,
// columns 2 (l % 4) and the next; row l / 4 + 8; the same two of the columns 8 on.
//
// E4M3, int8, E2M1 with its group scales, and int4 less its zero point are exact in bf16; int4 and E4M3 of blocks are
// multiplied by their scale and rounded once. What a codec leaves to the sums is kFactor, and the row scale.
#pragma once

#include <cstdint>

#include "math/bf16.cuh"
#include "quantized/bits.cuh"

// Arguments of a quantized matrix, by value.
struct QuantizedArgs {
  const float* row_scales;    // [64 row tiles]
  const float* block_scales;  // [row tile][column tile][slice][upper or lower 8 rows], or null
  const float* token_scales;  // of E4M3 activations: [tokens], or [column tile][token_stride] where blocks have scales
  int token_stride;
  int tile_bytes;       // of 64 rows by a tile's columns: codes, group scales, zero points
  int weight_stages;    // of the pipeline of weights
  int token_stages;     // of the pipeline of tokens
  int group_shift;      // of int4 in small groups: 0 for 32 columns, 1 for 64
  int has_zero_points;  // of int4
};

namespace codec {

__device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t sub2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ uint4 load_words4(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_words2(uint32_t from) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_word(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_half(uint32_t from) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from) : "memory");
  return v;
}

// The 64 bytes of codes of a lane.
__device__ __forceinline__ void load_codes(uint32_t (&q)[16], uint32_t slice) {
#pragma unroll
  for (int quarter = 0; quarter < 4; quarter++) {
    const uint4 v = load_words4(slice + quarter * 512 + threadIdx.x % 32 * 16);
    q[4 * quarter] = v.x, q[4 * quarter + 1] = v.y, q[4 * quarter + 2] = v.z, q[4 * quarter + 3] = v.w;
  }
}

// A float32 scale as the sum of two bf16, each in both halves of a word: multiplying by both rounds once.
struct SplitScale {
  uint32_t high, low;

  __device__ __forceinline__ void set(float scale) {
    const float rounded = __bfloat162float(__float2bfloat16(scale));
    high = pack_bf16(rounded, rounded);
    low = pack_bf16(scale - rounded, scale - rounded);
  }
  __device__ __forceinline__ uint32_t times(uint32_t pair) const { return fma2(pair, high, mul2(pair, low)); }
};

// Four E4M3 as two pairs of bf16 that are 2^120 too small.
__device__ __forceinline__ void widen_e4m3(uint32_t& low, uint32_t& high, uint32_t q) {
  const uint32_t upper = and_or(q, 0x80808080u, q >> 4 & 0x07070707u), lower = q << 4 & 0xF0F0F0F0u;
  low = __byte_perm(lower, upper, 0x5140);
  high = __byte_perm(lower, upper, 0x7362);
}

}  // namespace codec

// A codec is made of a slice in shared memory and has the fragments of its steps.
struct E4m3Codec {
  static constexpr int kSteps = 8;  // of 16 columns, in a tile
  static constexpr float kFactor = 1.f;
  static constexpr bool kHasBlockScales = false;
  uint32_t q[16];

  __device__ __forceinline__ E4m3Codec(uint32_t slice, uint32_t, const QuantizedArgs&) { codec::load_codes(q, slice); }
  __device__ __forceinline__ void step(uint32_t (&a)[4], int i) const {
    codec::widen_e4m3(a[0], a[1], q[2 * i]);
    codec::widen_e4m3(a[2], a[3], q[2 * i + 1]);
#pragma unroll
    for (int j = 0; j < 4; j++) a[j] = codec::mul2(a[j], 0x7B807B80u);
  }
};

// E4M3 with a float32 for each eight rows of a tile, of which block_scales has two.
struct E4m3BlockCodec {
  static constexpr int kSteps = 8;
  static constexpr float kFactor = 256.f;
  static constexpr bool kHasBlockScales = true;
  uint32_t q[16];
  codec::SplitScale upper, lower;

  __device__ __forceinline__ E4m3BlockCodec(uint32_t slice, uint32_t block_scales, const QuantizedArgs&) {
    codec::load_codes(q, slice);
    const uint2 scales = codec::load_words2(block_scales);
    upper.set(__uint_as_float(scales.x) * 0x1p112f);
    lower.set(__uint_as_float(scales.y) * 0x1p112f);
  }
  __device__ __forceinline__ void step(uint32_t (&a)[4], int i) const {
    codec::widen_e4m3(a[0], a[1], q[2 * i]);
    codec::widen_e4m3(a[2], a[3], q[2 * i + 1]);
    a[0] = upper.times(a[0]), a[1] = lower.times(a[1]), a[2] = upper.times(a[2]), a[3] = lower.times(a[3]);
  }
};

// int8, 128 added: bf16 has seven bits of 128 + n, the eighth chooses what is subtracted.
struct Int8Codec {
  static constexpr int kSteps = 8;
  static constexpr float kFactor = 1.f;
  static constexpr bool kHasBlockScales = false;
  uint32_t q[16];

  __device__ __forceinline__ Int8Codec(uint32_t slice, uint32_t, const QuantizedArgs&) { codec::load_codes(q, slice); }
  __device__ __forceinline__ void step(uint32_t (&a)[4], int i) const {
    pair(a[0], q[2 * i], 0x5140), pair(a[1], q[2 * i], 0x5342);
    pair(a[2], q[2 * i + 1], 0x5140), pair(a[3], q[2 * i + 1], 0x5342);
  }

 private:
  __device__ static __forceinline__ void pair(uint32_t& a, uint32_t q, uint32_t selector) {
    const uint32_t raw = __byte_perm(q, 0x43434343u, selector);
    a = codec::sub2(raw & 0xFF7FFF7Fu, (raw & 0xFF80FF80u) ^ 0x00800080u);
  }
};

// int4, 8 added; scales are f16. kGroup 128, or 0 for smaller groups (group_shift).
template <int kGroup>
struct Int4Codec {
  static constexpr int kSteps = 16;
  static constexpr float kFactor = 1.f;
  static constexpr bool kHasBlockScales = false;
  static constexpr int kGroupSteps = kGroup == 128 ? 8 : 2;  // that share what scale() has set
  uint32_t q[16];
  uint32_t scales, zeros;  // shared addresses of this lane's rows
  bool has_zero_points;
  int shift;
  uint32_t offset = in_register(0x43004300u);
  codec::SplitScale upper, lower;
  uint32_t upper_zero = 0x43084308u, lower_zero = 0x43084308u;

  __device__ __forceinline__ Int4Codec(uint32_t slice, uint32_t, const QuantizedArgs& args) {
    codec::load_codes(q, slice);
    shift = kGroup == 128 ? 2 : args.group_shift;
    const uint32_t row = threadIdx.x % 32 / 4;
    scales = slice + 2048 + row * (32u >> shift);
    zeros = slice + 2048 + (256u >> shift) + row * (16u >> shift);
    has_zero_points = args.has_zero_points;
  }
  __device__ __forceinline__ void step(uint32_t (&a)[4], int i) {
    if (i % kGroupSteps == 0) set_group(i / 2 >> shift);
    const uint32_t w = q[i];
    a[0] = upper.times(codec::sub2(and_or(w, 0x000F000Fu, offset), upper_zero));
    a[2] = upper.times(codec::sub2(and_or(w >> 4, 0x000F000Fu, offset), upper_zero));
    a[1] = lower.times(codec::sub2(and_or(w >> 8, 0x000F000Fu, offset), lower_zero));
    a[3] = lower.times(codec::sub2(and_or(w >> 12, 0x000F000Fu, offset), lower_zero));
  }

 private:
  __device__ __forceinline__ void set_group(int group) {
    const uint32_t both = codec::load_word(scales + group * 4);
    float high, low;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}"
        : "=f"(low), "=f"(high)
        : "r"(both));
    upper.set(low);
    lower.set(high);
    if (has_zero_points) {
      const uint32_t points = codec::load_half(zeros + group * 2);
      upper_zero = (points & 255) * 0x00010001u + 0x43004300u;
      lower_zero = (points >> 8) * 0x00010001u + 0x43004300u;
    }
  }
};

// E2M1 with an exponent for each 32 columns of a row. Codes choose bytes: bits 7 and 6 of a bf16, then bit 8 and sign.
struct Mxfp4Codec {
  static constexpr int kSteps = 16;
  static constexpr float kFactor = 4096.f;  // exponents end at that of 2^127
  static constexpr bool kHasBlockScales = false;
  uint32_t q[16], exponents[4];

  __device__ __forceinline__ Mxfp4Codec(uint32_t slice, uint32_t, const QuantizedArgs&) {
    codec::load_codes(q, slice);
    const uint4 v = codec::load_words4(slice + 2048 + threadIdx.x % 32 / 4 * 16);
    exponents[0] = v.x, exponents[1] = v.y, exponents[2] = v.z, exponents[3] = v.w;
  }
  __device__ __forceinline__ void step(uint32_t (&a)[4], int i) const {
    const uint32_t both = exponents[i / 4] >> (i / 2 % 2 * 16), w = q[i], chosen = w & 0x77777777u;
    row(a[0], a[2], chosen, w, (both & 255) * 0x00800080u + 0x72007200u);
    row(a[1], a[3], chosen >> 16, w << 4, (both >> 8 & 255) * 0x00800080u + 0x72007200u);
  }

 private:
  __device__ static __forceinline__ void row(uint32_t& left, uint32_t& right, uint32_t chosen, uint32_t signs,
                                             uint32_t scale) {
    const uint32_t low = __byte_perm(0xC0804000u, 0xC0804000u, chosen);
    const uint32_t high = and_or(signs, 0x80808080u, __byte_perm(0, 0x01010101u, chosen));
    left = codec::mul2(__byte_perm(low, high, 0x5140), scale);
    right = codec::mul2(__byte_perm(low, high, 0x7362), scale);
  }
};

// E2M1 with an E4M3 for each 16 columns of a row, five bits of exponent and three of mantissa in its byte.
struct Nvfp4Codec {
  static constexpr int kSteps = 16;
  static constexpr float kFactor = 1.f;
  static constexpr bool kHasBlockScales = false;
  uint32_t q[16], scales[8];

  __device__ __forceinline__ Nvfp4Codec(uint32_t slice, uint32_t, const QuantizedArgs&) {
    codec::load_codes(q, slice);
    const uint32_t from = slice + 2048 + threadIdx.x % 32 / 4 * 32;
    const uint4 v = codec::load_words4(from), w = codec::load_words4(from + 16);
    scales[0] = v.x, scales[1] = v.y, scales[2] = v.z, scales[3] = v.w;
    scales[4] = w.x, scales[5] = w.y, scales[6] = w.z, scales[7] = w.w;
  }
  __device__ __forceinline__ void step(uint32_t (&a)[4], int i) const {
    const uint32_t w = q[i], up3 = w << 3, both = scales[i / 2] >> (i % 2 * 16);
    const uint32_t upper = scale(both & 255), lower = scale(both >> 8 & 255);
    a[0] = codec::mul2(and_or(w, 0x80008000u, w >> 3 & 0x01C001C0u), upper);
    a[1] = codec::mul2(and_or(up3, 0x80008000u, w & 0x01C001C0u), lower);
    a[2] = codec::mul2(and_or(w << 1, 0x80008000u, up3 & 0x01C001C0u), upper);
    a[3] = codec::mul2(and_or(w << 2, 0x80008000u, w << 6 & 0x01C001C0u), lower);
  }

 private:
  // 2^112 times the f16 whose bits 14 to 7 the byte is.
  __device__ static __forceinline__ uint32_t scale(uint32_t octet) {
    return octet ? octet * 0x00100010u + 0x70007000u : 0u;
  }
};
