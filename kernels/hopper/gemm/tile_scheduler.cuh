// tile_scheduler.cuh: assign tiles of a GEMM, or ranges of their K, to thread blocks.
//
// A tile is two or three 64-row tiles (128 or 192 weight rows) by kTokens tokens over all of K, which is k_tiles steps
// of 64 columns. Tiles are numbered so that `group` n-tiles of the same weight rows are neighbours: they run at the
// same time and read those weights from memory once. Tiles [0, full_tiles) are data-parallel: blocks take them
// round-robin, each over all of K. The others are stream-K tiles (Osama et al. 2023, arXiv:2301.03598): dealt
// round-robin to `streams` streams (with one stream an n-tile, the blocks of a range read the same weights side by
// side); each stream is split into `ranges` equal K-ranges, so that all blocks read equally much. A block computes its
// range first, so that combining the partial sums of a split tile delays no other. Or there are no streams, and each of
// the last tiles belongs to a CTA pair, half of K each (cta_pair.cuh). ops/cuda/gemm/planner.py chooses these
// numbers; tiling.py beside it has the reference implementation of this file.
#pragma once

#include "math/bf16.cuh"

constexpr int kBlockBytes = 8192;  // a block of the tiled layout: 64 rows of 64 columns
constexpr int kBlockElements = kBlockBytes / 2;

struct GemmArgs {
  const bf16* weight;  // tiled, swizzled: kernels/README.md
  const bf16* bias;    // [rows] in the weight's row order, or null
  void* out;           // [tokens, out_columns]
  float* partials;     // [grid, 2, 2, kTokens / 8, 128, 4]: see split_k.cuh
  unsigned* arrivals;  // [grid, 2], zero before and after
  int rows;            // outputs
  int k_tiles;
  int tokens;
  int out_columns;
  int m_tiles;  // along the rows
  int n_tiles;  // along the tokens
  int group;
  int full_tiles;
  int streams;
  int ranges;         // of a stream: ranges * streams <= grid, ranges <= stream steps, their product < 2^31
  int pairs;          // blocks 2 i and 2 i + 1, a cluster, share tile full_tiles + i; then there are no stream-K tiles
  int stages;         // of the pipeline in shared memory
  int is_read_once;   // the grid reads every weight once: L2 need not keep it
  int shares_tokens;  // blocks 2 i and 2 i + 1, a cluster, take neighbouring m-tiles; each copies half of their tokens
};

struct GemmTile {
  int m_tile, n_tile;
  int k_begin, k_end;  // steps, of k_tiles
  int stream_index;    // number of a stream-K tile in its stream; undefined for other tiles
};

// Quotient of counts; most divisors are 1, and a block's first copies wait for this.
__device__ __forceinline__ int quotient(int dividend, int divisor) {
  return divisor == 1 ? dividend : static_cast<int>(static_cast<unsigned>(dividend) / static_cast<unsigned>(divisor));
}

// The work of one thread block; every warp role iterates the same tiles in the same order.
class TileScheduler {
 public:
  __device__ explicit TileScheduler(const GemmArgs& args)
      : args_(args), next_full_(args.shares_tokens ? blockIdx.x / 2 : blockIdx.x), pair_(blockIdx.x / 2) {
    const int range = quotient(blockIdx.x, args.streams), steps = stream_steps(args);
    stream_ = blockIdx.x - range * args.streams;
    if (range < args.ranges) {
      step_ = quotient(steps * range, args.ranges);
      end_ = quotient(steps * (range + 1), args.ranges);
    }
  }

  __device__ bool next(GemmTile& tile) {
    int index;
    if (step_ < end_) {
      tile.stream_index = quotient(step_, args_.k_tiles);
      tile.k_begin = step_ - tile.stream_index * args_.k_tiles;
      tile.k_end = min(args_.k_tiles, tile.k_begin + end_ - step_);
      step_ += tile.k_end - tile.k_begin;
      index = args_.full_tiles + tile.stream_index * args_.streams + stream_;
    } else if (args_.shares_tokens ? next_full_ * 2 < args_.full_tiles : next_full_ < args_.full_tiles) {
      index = next_full_;
      next_full_ += args_.shares_tokens ? gridDim.x / 2 : gridDim.x;
      tile.k_begin = 0;
      tile.k_end = args_.k_tiles;
    } else if (pair_ < args_.pairs) {
      const bool is_second = blockIdx.x % 2 == 1;
      index = args_.full_tiles + pair_;
      pair_ = args_.pairs;
      tile.k_begin = is_second ? args_.k_tiles / 2 : 0;
      tile.k_end = is_second ? args_.k_tiles : args_.k_tiles / 2;
    } else {
      return false;
    }
    const int m_tiles = args_.shares_tokens ? args_.m_tiles / 2 : args_.m_tiles, group_tiles = args_.group * m_tiles;
    const int first = index < group_tiles ? 0 : quotient(index, group_tiles) * args_.group;
    const int within = index - first * m_tiles, wide = min(args_.group, args_.n_tiles - first);
    tile.m_tile = quotient(within, wide);
    tile.n_tile = first + within - tile.m_tile * wide;
    if (args_.shares_tokens) tile.m_tile = tile.m_tile * 2 + blockIdx.x % 2;
    return true;
  }

  __device__ static int stream_steps(const GemmArgs& args) {
    return quotient(args.m_tiles * args.n_tiles - args.full_tiles - args.pairs, args.streams) * args.k_tiles;
  }

 private:
  const GemmArgs& args_;
  int stream_, next_full_, pair_, step_ = 0, end_ = 0;
};
