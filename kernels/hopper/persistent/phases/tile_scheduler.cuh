// tile_scheduler.cuh: the splits of sequences that a block attends to.
//
// A sequence has splits of 1,024 tokens, or kMaxSplits longer ones: by its context alone, so that a request's sums
// never depend on the batch. With few sequences the host allows more, `parallel_splits`, of 128 tokens or more. A work
// tile is a split for one KV head; blocks have equal runs of them.
#pragma once

#include "../model.cuh"
#include "attention/decode_tile.cuh"

constexpr int kSplitTiles = 64;    // KV tiles of 16 tokens of a split
constexpr int kMinSplitTiles = 8;  // of a split where blocks are left over: one for each warp

struct WorkTile {
  int sequence, head, split, splits;
  int first_tile, tiles;  // KV tiles of the split
  int first, end;         // tokens of the sequence that its query sees

  __device__ __forceinline__ bool has(int token) const { return token >= first && token < end; }
  __device__ __forceinline__ bool is_last() const { return split + 1 == splits; }
};

__device__ __forceinline__ int tiles_seen(int context, int window) {
  return (context + kTileTokens - 1) / kTileTokens - max(0, context - window) / kTileTokens;
}

__device__ __forceinline__ int splits_of(int tiles, int parallel_splits) {
  const int needed = (tiles + kSplitTiles - 1) / kSplitTiles, useful = (tiles + kMinSplitTiles - 1) / kMinSplitTiles;
  return min(kMaxSplits, max(needed, min(useful, parallel_splits)));
}

// The step's splits, and this block's work tiles [begin, end); in shared memory.
template <int N>
struct TileScheduler {
  int begin, end;
  int contexts[N], splits_before[N + 1];

  // By one warp: count the splits of each sequence, of layers that see `window` tokens.
  __device__ __forceinline__ void plan(const Args& args, int window, int parallel_splits) {
    const int lane = threadIdx.x % 32;
    int before = 0;
#pragma unroll
    for (int base = 0; base < N; base += 32) {
      const int sequence = base + lane, context = sequence < args.sequences ? args.contexts[sequence] : 0;
      const int splits = splits_of(tiles_seen(context, window), parallel_splits);
      int sum = splits;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (sequence < N) contexts[sequence] = context, splits_before[sequence + 1] = before + sum;
      before += __shfl_sync(kWholeWarp, sum, 31);
    }
    if (lane == 0) {
      const int64_t total = before * kKvHeads;
      const int blocks = gridDim.x;
      splits_before[0] = 0;
      begin = static_cast<int>(total * blockIdx.x / blocks);
      end = static_cast<int>(total * (blockIdx.x + 1) / blocks);
    }
  }

  __device__ __forceinline__ WorkTile work_tile(int index, int window) const {
    const int split = index / kKvHeads;
    int sequence = 0;
#pragma unroll
    for (int step = N / 2; step > 0; step /= 2) {
      if (splits_before[sequence + step] <= split) sequence += step;
    }
    WorkTile work;
    work.sequence = sequence, work.head = index - split * kKvHeads;
    work.split = split - splits_before[sequence];
    work.splits = splits_before[sequence + 1] - splits_before[sequence];
    work.end = contexts[sequence], work.first = max(0, work.end - window);
    const int tiles = tiles_seen(work.end, window), start = work.split * tiles / work.splits;
    work.first_tile = work.first / kTileTokens + start;
    work.tiles = (work.split + 1) * tiles / work.splits - start;
    return work;
  }
};
