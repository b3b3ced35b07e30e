// decode_step_work.cuh: which parts of which sequences a block attends to.
//
// A sequence is cut by its context alone, so that a request's sums never depend on its company: parts of 1,024 tokens,
// or kMostParts longer ones. An item is a part for one KV head; blocks have equal runs of them.
#pragma once

#include "decode_step_watch.cuh"
#include "attention/decode_tile.cuh"
#include "copy/shared_address.cuh"

struct Item {
  int sequence, head, part, parts;
  int first_tile, tiles;  // of the part
  int first, end;         // tokens of the sequence that its query sees

  __device__ __forceinline__ bool has(int token) const { return token >= first && token < end; }
  __device__ __forceinline__ bool is_last() const { return part + 1 == parts; }
};

__device__ __forceinline__ int tiles_seen(int context, int window) {
  return (context + kTileTokens - 1) / kTileTokens - max(0, context - window) / kTileTokens;
}

template <int N>
struct Work {
  const Small<N>& small;
  int window;
  int begin, end;  // items of this block

  // By one warp: count the parts of each sequence.
  static __device__ __forceinline__ void plan(Small<N>& small, const Args& args) {
    const int lane = threadIdx.x % 32;
    int before = 0;
#pragma unroll
    for (int base = 0; base < N; base += 32) {
      const int sequence = base + lane, context = sequence < args.sequences ? args.contexts[sequence] : 0;
      const int parts = min(kMostParts, (tiles_seen(context, args.window) + kPartTiles - 1) / kPartTiles);
      int sum = parts;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (sequence < N) small.contexts[sequence] = context, small.parts_before[sequence + 1] = before + sum;
      before += __shfl_sync(kWholeWarp, sum, 31);
    }
    if (lane == 0) small.parts_before[0] = 0;
  }

  __device__ __forceinline__ Work(const Small<N>& small, int window) : small(small), window(window) {
    const int total = small.parts_before[N] * kKvHeads, blocks = gridDim.x;
    begin = static_cast<int>(static_cast<int64_t>(total) * blockIdx.x / blocks);
    end = static_cast<int>(static_cast<int64_t>(total) * (blockIdx.x + 1) / blocks);
  }

  __device__ __forceinline__ Item item(int index) const {
    const int part = index / kKvHeads;
    int sequence = 0;
#pragma unroll
    for (int step = N / 2; step > 0; step /= 2) {
      if (small.parts_before[sequence + step] <= part) sequence += step;
    }
    Item item;
    item.sequence = sequence, item.head = index - part * kKvHeads;
    item.part = part - small.parts_before[sequence];
    item.parts = small.parts_before[sequence + 1] - small.parts_before[sequence];
    item.end = small.contexts[sequence], item.first = max(0, item.end - window);
    const int tiles = tiles_seen(item.end, window), start = item.part * tiles / item.parts;
    item.first_tile = item.first / kTileTokens + start;
    item.tiles = (item.part + 1) * tiles / item.parts - start;
    return item;
  }
};
