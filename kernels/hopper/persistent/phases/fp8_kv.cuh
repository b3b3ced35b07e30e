// fp8_kv.cuh: a cache of keys and values in E4M3 with a scale of each layer's K and of its V.
//
// A tile of 16 tokens is contiguous in the cache. In a stage it lies in rows of 128 bytes with the 128-byte swizzle: a
// token each, or two of heads of 64. ldmatrix takes two neighbouring codes for one number of 16 bits, so a lane gets
// other channels than of bf16: of each 16
//
//   K    4 (l % 4) to 4 (l % 4) + 3, as queries are loaded too
//   V    2 (l / 4) for row l / 4 of the sums, 2 (l / 4) + 1 for row l / 4 + 8
//
// Operands are f16, in which every code is exact; the scale of K goes into the scores', that of V into the result.
#pragma once

#include "math/f16.cuh"
#include "paged_kv.cuh"

constexpr int kFp8Lines = kTileTokens * kHeadSize / 128;  // of 128 bytes, of K or of V

// Byte of a stage, relative to its K or V, that holds channel c of token t.
__device__ __forceinline__ int byte_in_lines(int t, int c) {
  const int at = t * kHeadSize + c, line = at / 128;
  return line * 128 + ((at % 128 / 16) ^ (line % 8)) * 16 + at % 16;
}

// The lane's row for ldmatrix: tokens 0-7 and 8-15 of 16 channels, then of the next 16.
struct Fp8Rows {
  uint32_t keys;

  __device__ __forceinline__ Fp8Rows(uint32_t first_key, uint32_t first_value) : keys(first_key) {}
  __device__ __forceinline__ uint32_t key(int i) const {
    const int lane = threadIdx.x % 32;
    return keys + byte_in_lines(lane % 16, (i + lane / 16) * 16);
  }
  __device__ __forceinline__ uint32_t value(int i) const { return key(i) + kFp8Lines * 128; }
};

struct E4m3Operands {
  static constexpr int kSteps = 2;

  __device__ __forceinline__ static uint32_t query(uint32_t pair) { return pack_f16(bf16_low(pair), bf16_high(pair)); }
  __device__ __forceinline__ static uint32_t pack(float low, float high) { return pack_f16(low, high); }
  __device__ __forceinline__ static void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_16x8x16_f16(sums, a, b);
  }
  __device__ __forceinline__ static void load_keys(uint32_t (&k)[2][4], const Fp8Rows& rows, int i) {
    uint32_t codes[4];  // four channels of a token
    load_matrices(codes, rows.key(i));
#pragma unroll
    for (int j = 0; j < 4; j++) {
      k[j / 2][j % 2] = f16_from_e4m3(codes[j]), k[j / 2][j % 2 + 2] = f16_from_e4m3(codes[j] >> 16);
    }
  }
  __device__ __forceinline__ static void load_values(uint32_t (&v)[2][4], const Fp8Rows& rows, int i) {
    uint32_t codes[4];  // two channels of a token, then of the next one
    load_matrices_transposed(codes, rows.value(i));
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t by_channel = permute_bytes(codes[j], 0, 0x3120);
      v[j / 2][j % 2 * 2] = f16_from_e4m3(by_channel), v[j / 2][j % 2 * 2 + 1] = f16_from_e4m3(by_channel >> 16);
    }
  }
};

struct Fp8Kv : PagedTiles<Fp8Kv> {
  static constexpr int kStages = 1, kPartBytes = kFp8Lines * 128, kTileBytes = 2 * kPartBytes;
  using Element = uint8_t;
  using Rows = Fp8Rows;
  using Operands = E4m3Operands;

  // The tensor maps are of lines, in boxes of kFp8Lines.
  template <class Stream>
  static __device__ __forceinline__ void copy_stage(Stream& stream, uint32_t to, int row, int stage) {
    const int line = static_cast<int64_t>(row) * kHeadSize / 128;
    tma_load_2d(to, stream.keys, 0, line, stream.barrier(), kEvictFirst);
    tma_load_2d(to + kPartBytes, stream.values, 0, line, stream.barrier(), kEvictFirst);
  }

  struct Encoder {
    float inverse;
    __device__ __forceinline__ Encoder(const LayerWeights& layer, bool is_key)
        : inverse(1.f / (is_key ? layer.k_scale : layer.v_scale)) {}
    __device__ __forceinline__ uint8_t operator()(bf16 x) const {
      return static_cast<uint8_t>(e4m3_from_floats(__bfloat162float(x) * inverse, 0.f));
    }
  };
  static __device__ __forceinline__ float key_scale(const LayerWeights& layer) { return layer.k_scale; }
  static __device__ __forceinline__ float value_scale(const LayerWeights& layer) { return layer.v_scale; }

  static __device__ __forceinline__ int query_channel(int i) { return i / 2 * 16 + threadIdx.x % 4 * 4 + i % 2 * 2; }
  static __device__ __forceinline__ int channel_of(int row) { return row % 8 * 2 + row / 8; }

  // As PagedKv's. A code of all ones is NaN.
  static __device__ __forceinline__ void add_newest(uint32_t keys, uint32_t values, int newest, const uint8_t* key,
                                                    const uint8_t* value) {
#pragma unroll 1
    for (int c = threadIdx.x % 32 * 4; c < kHeadSize; c += 128) {
      store_shared(keys + byte_in_lines(newest, c), *reinterpret_cast<const uint32_t*>(key + c));
      store_shared(values + byte_in_lines(newest, c), *reinterpret_cast<const uint32_t*>(value + c));
#pragma unroll 1
      for (int row = newest + 1; row < kTileTokens; row++) store_shared(values + byte_in_lines(row, c), 0u);
    }
    fence_async_shared();
    __syncwarp();
  }
};
