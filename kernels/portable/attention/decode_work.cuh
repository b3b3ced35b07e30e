// decode_work.cuh: which part of which sequence a block of decode_attention.cu computes, found on the device.
//
// Sequences are cut into parts of about equal length, so many that they fill the GPU, however unequal the sequences
// are. The grid depends on the batch's size alone, so one CUDA graph serves all contexts; blocks left over end.
#pragma once

#include <cstdint>

#include "attention/decode_tile.cuh"
#include "math/reduce.cuh"

constexpr int kPartTiles = WISP_DECODE_PART_TILES;   // a part has at least so many tiles, unless it is alone
constexpr int kMostParts = WISP_DECODE_MAX_PARTS;  // of a sequence: the last block to arrive reads them all

// By value, as ops/cuda/attention/decode_attention.py fills it.
struct Shape {
  int64_t q_stride;
  int sequences, kv_heads, group, head_size;
  int block_tokens, table_width;
  unsigned reciprocal;  // of Tb: ceil(2^32 / Tb), so that a high product divides tokens below 2^32 / Tb
  int filling;          // parts that fill the GPU, for each KV head
  int window;           // tokens a query sees, its own included
  float scale;          // of the scores, times log2(e)
};

// Device arrays of a step.
struct Steps {
  const int* query_starts;  // [B + 1]
  const int* contexts;      // [B]
};

// The tokens that the query of a sequence sees; none where this kernel leaves the sequence alone.
struct Seen {
  int row;         // of N
  int first, end;  // tokens
  int first_tile, tiles;

  // Without branches, so that the loads of several sequences are under way at once.
  __device__ __forceinline__ Seen(int sequence, const Steps& steps, const Shape& shape) {
    const int known = min(sequence, shape.sequences - 1);
    const int context = steps.contexts[known], next_row = steps.query_starts[known + 1];
    row = steps.query_starts[known];
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

struct Work {
  int sequence, part, parts;  // no parts: nothing to do
  int first_place;            // of the sequence's parts among those of all sequences with several

  __device__ __forceinline__ int part_start(int part, const Seen& seen) const {
    return seen.first_tile + part * seen.tiles / parts;
  }
};

// Tiles of a part: an even share, and an eighth, lest a sequence be cut once more for a tile too many.
__device__ __forceinline__ int part_tiles(int total_tiles, int filling) {
  const int share = (total_tiles + filling - 1) / filling;
  return max(kPartTiles, share + share / 8);
}

// Find part number `index` of all sequences' parts, one after the other. Every warp does so by itself.
__device__ __forceinline__ Work find_work(int index, const Steps& steps, const Shape& shape) {
  const int lane = threadIdx.x % 32;
  int total = 0;
#pragma unroll 4
  for (int base = 0; base < shape.sequences; base += 32) total += Seen(base + lane, steps, shape).tiles;
  const int most_tiles = part_tiles(__reduce_add_sync(kWholeWarp, total), shape.filling);

  int before = 0;  // parts of the sequences before; of those with several parts, in the upper 16 bits
  for (int base = 0; base < shape.sequences; base += 32) {
    const Seen seen(base + lane, steps, shape);
    const int parts = min((seen.tiles + most_tiles - 1) / most_tiles, kMostParts);
    const int counted = parts > 1 ? parts << 16 | parts : parts;
    int sum = counted;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(kWholeWarp, sum, distance);
      if (lane >= distance) sum += other;
    }
    const int first = before + sum - counted, part = index - (first & 0xffff);
    const unsigned found = __ballot_sync(kWholeWarp, part >= 0 && part < parts);
    if (found != 0) {
      const int source = __ffs(found) - 1;
      return {base + source, __shfl_sync(kWholeWarp, part, source), __shfl_sync(kWholeWarp, parts, source),
              __shfl_sync(kWholeWarp, first, source) >> 16};
    }
    before += __shfl_sync(kWholeWarp, sum, 31);
  }
  return {};
}
