// linear_schedule.cuh: which tiles of the product, and which part of K of each, a thread block computes.
//
// A tile is two or three packed row tiles (128 or 192 weight rows) by kTokens tokens over all of K, which is k_tiles
// steps of 64 columns. Tiles are counted so that `group` token tiles of the same weight rows are neighbours: they run
// at the same time and read those weights once from memory. Tiles [0, whole) go to the blocks in turn, undivided. The
// others lie end to end on `lanes` lines, tile by tile in turn (with one lane for each token tile, the blocks of a
// range stream the same weights side by side); each line is cut into `ranges` equal ranges of steps, so that all blocks
// stream alike much (stream-K, Osama et al. 2023, arXiv:2301.03598). A block does its range first: joining the parts of
// a cut tile then delays nobody. Or there are no lines, and each of the last tiles has a pair of blocks, for half of K
// each (linear_pair.cuh). ops/cuda/gemm/linear_plan.py chooses these numbers, and holds the twin of this file.
#pragma once

#include "math/bf16.cuh"

constexpr int kBlockBytes = 8192;  // a packed block: 64 rows of 64 columns
constexpr int kBlockElements = kBlockBytes / 2;

struct LinearArgs {
  const bf16* weight;  // packed, kernels/README.md
  const bf16* bias;    // [rows] in packed order, or null
  void* out;           // [tokens, out_columns]
  float* parts;        // [grid, 2, 2, kTokens / 8, 128, 4]: see linear_parts.cuh
  unsigned* arrivals;  // [grid, 2], zero; left zero
  int rows;            // of the matrix
  int k_tiles;
  int tokens;
  int out_columns;
  int units;  // tiles along the rows
  int token_tiles;
  int group;
  int whole;
  int lanes;
  int ranges;         // of each line: ranges * lanes <= grid, ranges <= line steps, their product < 2^31
  int pairs;          // blocks 2 i and 2 i + 1, a cluster, share tile whole + i; then nothing lies on lines
  int stages;         // of the ring in shared memory
  int is_read_once;   // every weight once by the whole grid: L2 need not keep it
  int shares_tokens;  // blocks 2 i and 2 i + 1, a cluster, take neighbouring units; each copies half of their tokens
};

struct LinearTile {
  int unit, token_tile;
  int k_begin, k_end;  // of k_tiles
  int place;           // on its line, in tiles; of no meaning where the tile lies on none
};

// Of counts; most divisors are 1, and a block's first copies wait for this.
__device__ __forceinline__ int quotient(int dividend, int divisor) {
  return divisor == 1 ? dividend : static_cast<int>(static_cast<unsigned>(dividend) / static_cast<unsigned>(divisor));
}

// Every role of a block walks the same tiles in the same order.
class LinearSchedule {
 public:
  __device__ explicit LinearSchedule(const LinearArgs& args)
      : args_(args), next_whole_(args.shares_tokens ? blockIdx.x / 2 : blockIdx.x), pair_(blockIdx.x / 2) {
    const int range = quotient(blockIdx.x, args.lanes), steps = line_steps(args);
    lane_ = blockIdx.x - range * args.lanes;
    if (range < args.ranges) {
      at_ = quotient(steps * range, args.ranges);
      end_ = quotient(steps * (range + 1), args.ranges);
    }
  }

  __device__ bool next(LinearTile& tile) {
    int index;
    if (at_ < end_) {
      tile.place = quotient(at_, args_.k_tiles);
      tile.k_begin = at_ - tile.place * args_.k_tiles;
      tile.k_end = min(args_.k_tiles, tile.k_begin + end_ - at_);
      at_ += tile.k_end - tile.k_begin;
      index = args_.whole + tile.place * args_.lanes + lane_;
    } else if (args_.shares_tokens ? next_whole_ * 2 < args_.whole : next_whole_ < args_.whole) {
      index = next_whole_;
      next_whole_ += args_.shares_tokens ? gridDim.x / 2 : gridDim.x;
      tile.k_begin = 0;
      tile.k_end = args_.k_tiles;
    } else if (pair_ < args_.pairs) {
      const bool is_second = blockIdx.x % 2 == 1;
      index = args_.whole + pair_;
      pair_ = args_.pairs;
      tile.k_begin = is_second ? args_.k_tiles / 2 : 0;
      tile.k_end = is_second ? args_.k_tiles : args_.k_tiles / 2;
    } else {
      return false;
    }
    const int units = args_.shares_tokens ? args_.units / 2 : args_.units, group_tiles = args_.group * units;
    const int first = index < group_tiles ? 0 : quotient(index, group_tiles) * args_.group;
    const int within = index - first * units, wide = min(args_.group, args_.token_tiles - first);
    tile.unit = quotient(within, wide);
    tile.token_tile = first + within - tile.unit * wide;
    if (args_.shares_tokens) tile.unit = tile.unit * 2 + blockIdx.x % 2;
    return true;
  }

  __device__ static int line_steps(const LinearArgs& args) {
    return quotient(args.units * args.token_tiles - args.whole - args.pairs, args.lanes) * args.k_tiles;
  }

 private:
  const LinearArgs& args_;
  int lane_, next_whole_, pair_, at_ = 0, end_ = 0;
};
