// fp4.cuh: E2M1 with a scale for 32 columns of a row (MXFP4, a power of two) or 16 (NVFP4, E4M3), and one a row.
#pragma once

#include "quantized.cuh"

// Codes without signs choose among the upper bytes of eight f16s, made for each row and group with the scale in them.
struct Mxfp4 : Quantized {
  static constexpr int kBlockK = 256, kTileBytes = kCodeBytes + GroupScales<4>::kBytes;

  struct Unpacker : GroupScales<4> {
    template <int kStep>
    __device__ __forceinline__ void unpack(uint32_t (&a)[4], const uint32_t (&codes)[kCodeWords]) const {
      const uint32_t pair = scales[kStep / 4] >> (kStep / 2 % 2 * 16), word = codes[kStep];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const uint32_t exponent = pair >> (8 * half) & 255;
        const uint32_t low = exponent * 0x04040400u + 0x0A080400u, high = exponent * 0x04040404u + 0x12100E0Cu;
        const uint32_t bytes = __byte_perm(low, high, (word & 0x77777777u) >> (16 * half));
        const uint32_t all = and_or(word << (4 * half), 0x80808080u, bytes);
        a[half] = __byte_perm(all, 0, 0x1404), a[half + 2] = __byte_perm(all, 0, 0x3424);
      }
    }
  };
};

// A code moves to the sign, the low bits of the exponent and the high bit of the mantissa of an f16, 2^14 too small;
// scales lie as bits 14 to 7 of an f16.
struct Nvfp4 : Quantized {
  static constexpr int kBlockK = 256, kTileBytes = kCodeBytes + GroupScales<8>::kBytes;

  struct Unpacker : GroupScales<8> {
    template <int kStep>
    __device__ __forceinline__ void unpack(uint32_t (&a)[4], const uint32_t (&codes)[kCodeWords]) const {
      const uint32_t word = codes[kStep], upper = __byte_perm(scales[kStep / 2], 0, kStep % 2 ? 0x4242 : 0x4040) * 128u,
                     lower = __byte_perm(scales[kStep / 2], 0, kStep % 2 ? 0x4343 : 0x4141) * 128u;
      a[0] = multiply_f16x2(word & 0x8E008E00u, upper);
      a[1] = multiply_f16x2((word * 8) & 0x8E008E00u, lower);
      a[2] = multiply_f16x2(and_or(word * 2, 0x80008000u, (word * 64) & 0x0E000E00u), upper);
      a[3] = multiply_f16x2(and_or(word * 4, 0x80008000u, (word * 512) & 0x0E000E00u), lower);
    }
  };
};
