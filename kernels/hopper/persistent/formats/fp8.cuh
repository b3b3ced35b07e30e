// fp8.cuh: E4M3 with a scale a row, and a float32 for 8 rows and 128 columns too.
#pragma once

#include "quantized.cuh"

struct Fp8 : Quantized {
  static constexpr int kBlockK = 128, kTileBytes = kCodeBytes;

  struct Unpacker : NoPromotedScales {
    __device__ __forceinline__ void load(uint32_t tile, uint32_t block_scales) {}
    template <int kStep>
    __device__ __forceinline__ void unpack(uint32_t (&a)[4], const uint32_t (&codes)[kCodeWords]) const {
      const uint32_t left = codes[2 * kStep], right = codes[2 * kStep + 1];
      a[0] = f16_from_e4m3(left), a[1] = f16_from_e4m3(left >> 16);
      a[2] = f16_from_e4m3(right), a[3] = f16_from_e4m3(right >> 16);
    }
  };
};

struct Fp8Block : Fp8 {
  static constexpr bool kHasBlockScales = true;
  static constexpr int kPromotedSteps = 8;

  struct Unpacker : Fp8::Unpacker {
    uint32_t scales[2];
    __device__ __forceinline__ void load(uint32_t tile, uint32_t block_scales) { load_words(scales, block_scales); }
    __device__ __forceinline__ uint32_t last_loaded(const uint32_t (&)[kCodeWords]) const { return scales[1]; }
    __device__ __forceinline__ float scale(int group, bool is_lower) const {
      return __uint_as_float(is_lower ? scales[1] : scales[0]);
    }
  };
};
