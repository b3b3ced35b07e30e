// int8.cuh: int8 with a scale a row, stored with 128 added: a byte under 0x64 is the f16 1024 + byte.
#pragma once

#include "quantized.cuh"

struct Int8 : Quantized {
  static constexpr int kBlockK = 128, kTileBytes = kCodeBytes;

  struct Unpacker : NoPromotedScales {
    __device__ __forceinline__ void load(uint32_t tile, uint32_t block_scales) {}
    template <int kStep>
    __device__ __forceinline__ void unpack(uint32_t (&a)[4], const uint32_t (&codes)[kCodeWords]) const {
#pragma unroll
      for (int side = 0; side < 2; side++) {
        const uint32_t word = codes[2 * kStep + side];
        a[2 * side] = add_f16x2(__byte_perm(word, 0x64646464u, 0x4140), 0xE480E480u);  // -1152
        a[2 * side + 1] = add_f16x2(__byte_perm(word, 0x64646464u, 0x4342), 0xE480E480u);
      }
    }
  };
};
