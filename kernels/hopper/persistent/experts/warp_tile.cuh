// warp_tile.cuh: a tile of weights in a warp's registers, 16 rows of a block of K, and its MMAs with up to eight
// sequences.
#pragma once

#include "../formats/bf16.cuh"
#include "../phases/quantized_gemm.cuh"

// Activations of a block of K: of each 64 columns four registers a half, as mma.sync takes them.
template <class Format>
struct WarpColumns {
  static constexpr int kParts = Format::kBlockK / 64;
  uint32_t words[kParts][1][2][4];

  // 64 columns, of which the lane's row (a sequence, or its slot) begins at `row_address`, row `row` of the swizzle.
  __device__ __forceinline__ void load(int part, uint32_t row_address, int row) {
    const int chunk = threadIdx.x % 32 / 8;
#pragma unroll
    for (int i = 0; i < 2; i++) load_matrices(words[part][0][i], row_address + ((chunk + 4 * i) ^ (row % 8)) * 16);
  }
};

// Quantized: codes, unpacked as they are multiplied.
template <class Format>
struct WarpTile {
  uint32_t codes[kCodeWords];
  typename Format::Unpacker unpacker;

  __device__ __forceinline__ void load(uint32_t tile, uint32_t block_scales) {
    load_codes(codes, tile);
    unpacker.load(tile, block_scales);
  }
  // For mbarrier_arrive_after.
  __device__ __forceinline__ uint32_t last_loaded() const { return unpacker.last_loaded(codes); }
  __device__ __forceinline__ void add_to(float (&sums)[4], const WarpColumns<Format>& columns) const {
    add_tile<Format, 1>(sums, unpacker, codes, columns.words);
  }
};

template <>
struct WarpTile<Bf16> {
  uint32_t a[4][4];  // of each 16 columns

  __device__ __forceinline__ void load(uint32_t tile, uint32_t block_scales) {
    const int lane = threadIdx.x % 32, row = lane % 8;
    const uint32_t from = tile + lane / 8 % 2 * 1024 + row * 128;
#pragma unroll
    for (int step = 0; step < 4; step++) load_matrices(a[step], from + ((2 * step + lane / 16) ^ row) * 16);
  }
  __device__ __forceinline__ uint32_t last_loaded() const { return a[3][0]; }
  __device__ __forceinline__ void add_to(float (&sums)[4], const WarpColumns<Bf16>& columns) const {
    float odd[4] = {};
#pragma unroll
    for (int step = 0; step < 4; step++) {
      mma_16x8x16(step % 2 ? odd : sums, a[step], &columns.words[0][0][step / 2][step % 2 * 2]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] += odd[i];
  }
};
