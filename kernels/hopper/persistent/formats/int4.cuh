// int4.cuh: int4 with an f16 scale for each kGroup columns of a row, stored with 8 added, or with a zero point.
//
// The low nibbles of the halves of a word under 0x6400 are the f16s 1024 + n, the next ones under 0x5400 64 + n: one
// LOP3 and one addition for two weights.
#pragma once

#include "quantized.cuh"

template <int kGroup, bool kHasZeroPoints = false>
struct Int4 : Quantized {
  static constexpr int kBlockK = 256, kGroups = kBlockK / kGroup;
  static constexpr int kScaleBytes = 32 * kGroups,
                       kTileBytes = kCodeBytes + kScaleBytes + kHasZeroPoints * 16 * kGroups;
  static constexpr int kPromotedSteps = kGroup / 16;

  struct Unpacker {
    uint32_t scales[kGroups];  // upper and lower row
    uint32_t zeros[kGroups / 2];
    uint32_t high = in_register(0x64006400u), low = in_register(0x54005400u);

    __device__ __forceinline__ void load(uint32_t tile, uint32_t block_scales) {
      const int row = threadIdx.x % 32 / 4;
      load_words(scales, tile + kCodeBytes + row * (4 * kGroups));
      if constexpr (kHasZeroPoints) load_words(zeros, tile + kCodeBytes + kScaleBytes + row * (2 * kGroups));
    }
    __device__ __forceinline__ uint32_t last_loaded(const uint32_t (&)[kCodeWords]) const {
      return kHasZeroPoints ? zeros[0] : scales[kGroups - 1];
    }
    __device__ __forceinline__ float scale(int group, bool is_lower) const {
      return is_lower ? f16_high(scales[group]) : f16_low(scales[group]);
    }
    template <int kStep>
    __device__ __forceinline__ void unpack(uint32_t (&a)[4], const uint32_t (&codes)[kCodeWords]) const {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const uint32_t word = codes[kStep] >> (8 * half);
        uint32_t left = 0xE408E408u, right = 0xD480D480u;  // -(1024 + 8), -(64 + 8)
        if constexpr (kHasZeroPoints) {
          constexpr int kGroupOfStep = kStep / kPromotedSteps;
          const uint32_t pair =
              __byte_perm(zeros[kGroupOfStep / 2], 0, 0x4040 + 0x0101 * (kGroupOfStep % 2 * 2 + half));
          left = 0xE400E400u | pair, right = 0xD400D400u | pair << 4;
        }
        a[half] = add_f16x2(and_or(word, 0x000f000fu, high), left);
        a[half + 2] = add_f16x2(and_or(word, 0x00f000f0u, low), right);
      }
    }
  };
};
