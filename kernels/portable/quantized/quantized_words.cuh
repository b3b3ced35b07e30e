// quantized_words.cuh: a lane's share of a packed slice's 64 columns, by format, and the A fragments that it stands
// for.
//
// A format has, beside its Words: kBits of a code, kColumns of a tile, and kGroups, the groups of columns in 64 whose
// scale multiplies float32 sums; with none, sums are of the weights themselves.
#pragma once

#include <cuda_fp16.h>

#include "quantized/e2m1.cuh"
#include "quantized/e4m3.cuh"
#include "quantized/int4.cuh"
#include "quantized/int8.cuh"

namespace portable {

constexpr int kCodeBytes = 2048;  // of a slice

// Place of a slice: what its loads need.
struct SlicePlace {
  const unsigned char* codes;         // of the slice's current tile
  const unsigned char* block_scales;  // the same, float32 of upper and lower rows; if the format has any
  int group_shift;                    // groups of 128 columns: 1, of 64: 0
  int zero_points;                    // offset from `codes`, or 0

  template <class Word>
  static __device__ __forceinline__ Word load(const unsigned char* from) {
    return __ldg(reinterpret_cast<const Word*>(from));
  }
};

// The same of a slice in shared memory.
struct SharedSlicePlace : SlicePlace {
  template <class Word>
  static __device__ __forceinline__ Word load(const unsigned char* from) {
    return *reinterpret_cast<const Word*>(from);
  }
};

// The upper (row 0) or lower f16 of a word.
__device__ __forceinline__ float scale_of(uint32_t pair, int row) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> (16 * row))));
}

template <int kOfCode>
struct Codes {
  static constexpr int kBits = kOfCode, kColumns = 1024 / kOfCode, kGroups = 0;
  static constexpr int kVectors = kOfCode / 4;  // of 16 bytes a lane, in 64 columns
  static constexpr bool kHasBlockScales = false;
  uint4 codes[kVectors];

  template <class Place>
  __device__ __forceinline__ void load_codes(const Place& place, int chunk) {
    const unsigned char* from = place.codes + (chunk * kVectors * 32 + threadIdx.x % 32) * 16;
#pragma unroll
    for (int i = 0; i < kVectors; i++) codes[i] = Place::template load<uint4>(from + i * 512);
  }
  // Word `step` of 4 bits; of 8 the words 2 step and 2 step + 1.
  __device__ __forceinline__ uint32_t word(int index) const {
    const uint4& v = codes[index / 4];
    return index % 4 == 0 ? v.x : index % 4 == 1 ? v.y : index % 4 == 2 ? v.z : v.w;
  }
  static __device__ __forceinline__ int row() { return threadIdx.x % 32 / 4; }
};

struct Fp8Words : Codes<8> {
  template <class Place>
  __device__ __forceinline__ void load(const Place& place, int chunk) {
    load_codes(place, chunk);
  }
  __device__ __forceinline__ void fragment(uint32_t (&a)[4], int step) const {
    bf16_of_e4m3(a, word(2 * step), word(2 * step + 1));
  }
  __device__ __forceinline__ float scale(int, int) const { return 1.f; }
};

struct Fp8BlockWords : Fp8Words {
  static constexpr int kGroups = 1;
  static constexpr bool kHasBlockScales = true;
  float2 scales;
  template <class Place>
  __device__ __forceinline__ void load(const Place& place, int chunk) {
    load_codes(place, chunk);
    scales = Place::template load<float2>(place.block_scales);
  }
  __device__ __forceinline__ float scale(int, int row) const { return row ? scales.y : scales.x; }
};

struct Int8Words : Codes<8> {
  template <class Place>
  __device__ __forceinline__ void load(const Place& place, int chunk) {
    load_codes(place, chunk);
  }
  __device__ __forceinline__ void fragment(uint32_t (&a)[4], int step) const {
    bf16_of_int8(a, word(2 * step), word(2 * step + 1));
  }
  __device__ __forceinline__ float scale(int, int) const { return 1.f; }
};

// Groups of 128 and 64 columns, whose number is an argument; zero points if there are any.
struct Int4Words : Codes<4> {
  static constexpr int kGroups = 1;
  uint32_t scales;  // f16: upper, lower
  unsigned short zeros;
  template <class Place>
  __device__ __forceinline__ void load(const Place& place, int chunk) {
    load_codes(place, chunk);
    const int group = (row() * 4 >> place.group_shift) + (chunk >> place.group_shift);
    scales = Place::template load<uint32_t>(place.codes + kCodeBytes + group * 4);
    zeros = 0x0808;
    if (place.zero_points) zeros = Place::template load<unsigned short>(place.codes + place.zero_points + group * 2);
  }
  __device__ __forceinline__ void fragment(uint32_t (&a)[4], int step) const {
    bf16_of_int4(a, word(step), int4_offset(zeros & 255), int4_offset(zeros >> 8));
  }
  __device__ __forceinline__ float scale(int, int row) const { return scale_of(scales, row); }
};

struct Int4Group32Words : Codes<4> {
  static constexpr int kGroups = 2;
  uint2 scales;  // of each group f16: upper, lower
  uint32_t zeros;
  template <class Place>
  __device__ __forceinline__ void load(const Place& place, int chunk) {
    load_codes(place, chunk);
    const int groups = row() * 8 + chunk * 2;
    scales = Place::template load<uint2>(place.codes + kCodeBytes + groups * 4);
    zeros = 0x08080808;
    if (place.zero_points) zeros = Place::template load<uint32_t>(place.codes + place.zero_points + groups * 2);
  }
  __device__ __forceinline__ void fragment(uint32_t (&a)[4], int step) const {
    const uint32_t own = zeros >> (step / 2 * 16);
    bf16_of_int4(a, word(step), int4_offset(own & 255), int4_offset(own >> 8 & 255));
  }
  __device__ __forceinline__ float scale(int group, int row) const {
    return scale_of(group ? scales.y : scales.x, row);
  }
};

struct Mxfp4Words : Codes<4> {
  uint32_t scales;  // bytes [2 groups][upper, lower]
  template <class Place>
  __device__ __forceinline__ void load(const Place& place, int chunk) {
    load_codes(place, chunk);
    scales = Place::template load<uint32_t>(place.codes + kCodeBytes + row() * 16 + chunk * 4);
  }
  __device__ __forceinline__ void fragment(uint32_t (&a)[4], int step) const {
    const uint32_t own = scales >> (step / 2 * 16);
    bf16_of_mxfp4(a, word(step), mxfp4_scale(own & 255), mxfp4_scale(own >> 8 & 255));
  }
  __device__ __forceinline__ float scale(int, int) const { return 1.f; }
};

struct Nvfp4Words : Codes<4> {
  uint2 scales;  // bytes [4 groups][upper, lower]
  template <class Place>
  __device__ __forceinline__ void load(const Place& place, int chunk) {
    load_codes(place, chunk);
    scales = Place::template load<uint2>(place.codes + kCodeBytes + row() * 32 + chunk * 8);
  }
  __device__ __forceinline__ void fragment(uint32_t (&a)[4], int step) const {
    uint32_t upper, lower;
    nvfp4_scales((step < 2 ? scales.x : scales.y) >> (step % 2 * 16), upper, lower);
    bf16_of_nvfp4(a, word(step), upper, lower);
  }
  __device__ __forceinline__ float scale(int, int) const { return 1.f; }
};

}  // namespace portable
