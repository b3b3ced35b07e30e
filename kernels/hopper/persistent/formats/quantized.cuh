// quantized.cuh: base of the quantized formats, whose tiles a warp unpacks into A fragments of f16, in registers.
//
// wisp_plan/quantization/packed_format.py defines the tiles: 2,048 bytes of codes, [quarter][lane][16 bytes], then the
// scales of groups as [lane / 4][group][upper, lower row], then zero points. A step is 16 columns; its A fragment is
// a[0] row l / 4, columns 2 (l % 4) and the next; a[1] row l / 4 + 8; a[2] and a[3] the same 8 columns on.
//
// A format has, beside a WeightFormat's, an Unpacker:
//   load(tile, block_scales)   scales, from shared memory
//   last_loaded(codes)         a word of the last of these loads, or of the codes before them if there is none
//   unpack<kStep>(a, codes)    a step's fragment, without what scale() gives
//   scale(group, is_lower)     of the sums of kPromotedSteps steps, multiplied in float32, if those are not 0
#pragma once

#include "bf16.cuh"
#include "math/f16.cuh"

constexpr int kCodeWords = 16, kCodeBytes = 2048;  // of a lane, and of a tile

struct Quantized : WeightFormat {
  using Activations = F16Activations;
  static constexpr bool kIsQuantized = true;
  static constexpr int kPromotedSteps = 0;  // else sums of so many steps are scaled in float32
};

// Scales that are in the fragment already, and none that are loaded.
struct NoPromotedScales {
  __device__ __forceinline__ uint32_t last_loaded(const uint32_t (&codes)[kCodeWords]) const {
    return codes[kCodeWords - 1];
  }
  __device__ __forceinline__ float scale(int group, bool is_lower) const { return 1.f; }
};

__device__ __forceinline__ void load_words(uint32_t (&words)[4], uint32_t from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void load_words(uint32_t (&words)[8], uint32_t from) {
  uint32_t low[4], high[4];
  load_words(low, from), load_words(high, from + 16);
#pragma unroll
  for (int i = 0; i < 4; i++) words[i] = low[i], words[i + 4] = high[i];
}
__device__ __forceinline__ void load_words(uint32_t (&words)[2], uint32_t from) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(from) : "memory");
}
__device__ __forceinline__ void load_words(uint32_t (&words)[1], uint32_t from) {
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[0]) : "r"(from) : "memory");
}

// Scales of groups behind a tile's codes, in bytes: group 0 upper, lower row, group 1 upper, ...
template <int kWords>
struct GroupScales : NoPromotedScales {
  static constexpr int kBytes = 8 * 4 * kWords;  // of a tile
  uint32_t scales[kWords];                       // of a lane's two rows
  __device__ __forceinline__ void load(uint32_t tile, uint32_t block_scales) {
    load_words(scales, tile + kCodeBytes + threadIdx.x % 32 / 4 * (4 * kWords));
  }
  __device__ __forceinline__ uint32_t last_loaded(const uint32_t (&)[kCodeWords]) const { return scales[kWords - 1]; }
};

// A lane's codes of a tile.
__device__ __forceinline__ void load_codes(uint32_t (&codes)[kCodeWords], uint32_t tile) {
#pragma unroll
  for (int quarter = 0; quarter < 4; quarter++) {
    uint32_t words[4];
    load_words(words, tile + quarter * 512 + threadIdx.x % 32 * 16);
#pragma unroll
    for (int i = 0; i < 4; i++) codes[4 * quarter + i] = words[i];
  }
}

// The fragment with its scale, for MMAs whose sums have several.
template <class Format, int kStep>
__device__ __forceinline__ void unpack_scaled(const typename Format::Unpacker& unpacker, uint32_t (&a)[4],
                                              const uint32_t (&codes)[kCodeWords]) {
  unpacker.template unpack<kStep>(a, codes);
  const int group = kStep / Format::kPromotedSteps;
  const float upper = unpacker.scale(group, false), lower = unpacker.scale(group, true);
  const uint32_t scales[2] = {pack_f16(upper, upper), pack_f16(lower, lower)};
#pragma unroll
  for (int i = 0; i < 4; i++) a[i] = multiply_f16x2(a[i], scales[i % 2]);
}
