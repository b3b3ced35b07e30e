// decode_scheduler.cuh: assign splits of sequences (split-KV) to thread blocks of decode_attention.cu, on the device.
//
// Sequences are split into ranges of about equal length, so many that they fill the GPU, however unequal the sequences
// are. The grid depends on the size of the batch alone, so one CUDA graph serves all contexts; surplus blocks exit.
// Batch-invariant (`own_splits`), a sequence is split by its own length alone, whatever else is in the batch.
#pragma once

#include <cstdint>

#include "attention/decode_tile.cuh"
#include "math/reduce.cuh"

constexpr int kMinSplitTiles = WISP_DECODE_MIN_SPLIT_TILES;  // fewest tiles of a split, unless it is alone
constexpr int kMaxSplits = WISP_DECODE_MAX_SPLITS;           // of a sequence: the last block to arrive combines them
constexpr int kOwnSplitTiles = WISP_DECODE_OWN_SPLIT_TILES;  // of a split that follows from its sequence alone

// By value, as ops/cuda/attention/decode_attention.py fills it.
struct Shape {
  int64_t q_stride;
  int sequences, kv_heads, group, head_size;
  int block_tokens, table_width;
  unsigned reciprocal;  // of Tb: ceil(2^32 / Tb), so that a high product divides tokens below 2^32 / Tb
  int filling;          // splits that fill the GPU, for each KV head
  int window;           // tokens that a query attends to, its own included
  int own_splits;       // batch-invariant: splits of a sequence at most; 0: they depend on the batch
  float scale;          // score scale, times log2(e)
};

// Device arrays of the batch.
struct Sequences {
  const int* query_starts;  // [B + 1]
  const int* contexts;      // [B]
};

// The tokens that the query of a sequence attends to; none where this kernel skips the sequence.
struct VisibleRange {
  int row;         // of q
  int first, end;  // tokens
  int first_tile, tiles;

  // Without branches, so that the loads of several sequences are in flight at once.
  __device__ __forceinline__ VisibleRange(int sequence, const Sequences& batch, const Shape& shape) {
    const int known = min(sequence, shape.sequences - 1);
    const int context = batch.contexts[known], next_row = batch.query_starts[known + 1];
    row = batch.query_starts[known];
    const bool attends = (sequence == known) & (next_row - row == 1) & (context > 0);
    end = attends ? context : 0;
    first = max(0, end - shape.window);
    first_tile = first / kTileTokens;
    tiles = (end + kTileTokens - 1) / kTileTokens - first_tile;
  }
  __device__ __forceinline__ bool has(int token) const { return token >= first && token < end; }
  __device__ __forceinline__ bool has_all(int tile) const {
    return tile * kTileTokens >= first && (tile + 1) * kTileTokens <= end;
  }
};

struct WorkTile {
  int sequence, split, splits;  // splits 0: no work
  int first_slot;               // of the sequence's partial results, among those of all sequences with several

  __device__ __forceinline__ int split_start(int split, const VisibleRange& visible) const {
    return visible.first_tile + split * visible.tiles / splits;
  }
};

// Tiles of a split: an even share and an eighth more, so that no sequence is split again for a tile.
__device__ __forceinline__ int split_tiles(int total_tiles, int filling) {
  const int share = (total_tiles + filling - 1) / filling;
  return max(kMinSplitTiles, share + share / 8);
}

// Find split number `index` of all sequences' splits, in order. Every warp computes it by itself.
__device__ __forceinline__ WorkTile find_work_tile(int index, const Sequences& batch, const Shape& shape) {
  const int lane = threadIdx.x % 32;
  int max_tiles = kOwnSplitTiles, max_splits = shape.own_splits;
  if (max_splits == 0) {
    int total = 0;
#pragma unroll 4
    for (int base = 0; base < shape.sequences; base += 32) total += VisibleRange(base + lane, batch, shape).tiles;
    max_tiles = split_tiles(__reduce_add_sync(kWholeWarp, total), shape.filling), max_splits = kMaxSplits;
  }

  int before = 0;  // splits of the sequences before; upper 16 bits: of those with several splits
  for (int base = 0; base < shape.sequences; base += 32) {
    const VisibleRange visible(base + lane, batch, shape);
    const int splits = min((visible.tiles + max_tiles - 1) / max_tiles, max_splits);
    const int counted = splits > 1 ? splits << 16 | splits : splits;
    int sum = counted;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(kWholeWarp, sum, distance);
      if (lane >= distance) sum += other;
    }
    const int first = before + sum - counted, split = index - (first & 0xffff);
    const unsigned matches = __ballot_sync(kWholeWarp, split >= 0 && split < splits);
    if (matches != 0) {
      const int source = __ffs(matches) - 1;
      return {base + source, __shfl_sync(kWholeWarp, split, source), __shfl_sync(kWholeWarp, splits, source),
              __shfl_sync(kWholeWarp, first, source) >> 16};
    }
    before += __shfl_sync(kWholeWarp, sum, 31);
  }
  return {};
}
