// staged_output.cuh: results of a tile, rounded and transposed in shared memory by those who multiplied, and stored by
// a warp of their own while the next tile is multiplied.
#pragma once

#include "tile_queue.cuh"

constexpr int kTileTokens = 256, kBoxTokens = 64;  // a tile is multiplied by as many boxes as it has
constexpr int kRowTiles = 2, kConsumerWarps = kRowTiles * 4;

template <bool kGated>
struct StagedOutput {
  static constexpr int kVectors = kGated ? 4 : 8;  // of 16 bytes: a token of a row tile's output
  static constexpr int kRowTileBytes = kTileTokens * kVectors * 16, kBytes = kRowTiles * kRowTileBytes;

  uint32_t data, full, empty;  // shared addresses: results, two mbarriers
  uint32_t parity = 0;         // of the next tile

  __device__ StagedOutput(uint32_t data, uint32_t barriers) : data(data), full(barriers), empty(barriers + 8) {}

  __device__ __forceinline__ void init() const { mbarrier_init(full, kConsumerWarps), mbarrier_init(empty, 1); }

  // Stage a row tile's sums of `boxes` boxes of tokens, times the scale of their row, plus its bias. Called by a
  // warpgroup.
  __device__ __forceinline__ void stage(const float (&sums)[kTileTokens / 2], int boxes, const float (&scales)[2],
                                        const float (&bias)[2], int warpgroup) {
    mbarrier_wait(empty, parity ^ 1);
    parity ^= 1;
#pragma unroll
    for (int box = 0; box < kTileTokens / kBoxTokens; box++) {
      if (box < boxes) stage_box(sums + box * kBoxTokens / 2, box, scales, bias, warpgroup);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(full);
  }

  // Store what was staged of a tile. Called by a warp.
  __device__ __forceinline__ void store(const ExpertArgs& args, const ExpertTile& tile) {
    constexpr int kAll = kRowTiles * kVectors;  // of a token
    const int column = tile.row_block * kAll * 8;
    bf16* out = args.out + static_cast<size_t>(tile.first) * args.out_columns + column;
    mbarrier_wait(full, parity);
    parity ^= 1;
#pragma unroll 4
    for (int at = threadIdx.x % 32; at < (tile.end - tile.first) * kAll; at += 32) {
      const int token = at / kAll, vector = at % kAll;
      const uint32_t from = data + vector / kVectors * kRowTileBytes;
      const uint4 value = load_shared16(from + transposed_offset<kVectors>(token, vector % kVectors));
      if (column + vector * 8 < args.out_columns) {
        store16(out + static_cast<size_t>(token) * args.out_columns + vector * 8, value);
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty);
  }

 private:
  __device__ __forceinline__ void stage_box(const float* sums, int box, const float (&scales)[2],
                                            const float (&bias)[2], int warpgroup) {
    constexpr int kWords = kGated ? kBoxTokens / 8 : kBoxTokens / 4;  // of a thread: two neighbouring tokens each
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint32_t to = data + warpgroup * kRowTileBytes;
#pragma unroll
    for (int first = 0; first < kWords; first += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; i++) words[i] = word(sums + (first + i) * (kGated ? 4 : 2), scales, bias, i % 2);
      const int matrix = first + lane / 8;
      const int token = box * kBoxTokens + (kGated ? matrix : matrix / 2) * 8 + lane % 8;
      const int vector = kGated ? warp : warp * 2 + matrix % 2;
      stmatrix_transposed<4>(to + transposed_offset<kVectors>(token, vector), words);
    }
  }

  // Sums of a gate's row and of its up value's, or of one row of the two, which is the lower one or not.
  __device__ static __forceinline__ uint32_t word(const float* sums, const float (&scales)[2], const float (&bias)[2],
                                                  int is_lower) {
    if constexpr (kGated) {
      const float gates[2] = {fmaf(sums[0], scales[0], bias[0]), fmaf(sums[1], scales[0], bias[0])};
      const float ups[2] = {fmaf(sums[2], scales[1], bias[1]), fmaf(sums[3], scales[1], bias[1])};
      return pack_bf16(silu(gates[0]) * ups[0], silu(gates[1]) * ups[1]);
    } else {
      const float scale = scales[is_lower], own = bias[is_lower];
      return pack_bf16(fmaf(sums[0], scale, own), fmaf(sums[1], scale, own));
    }
  }
};
