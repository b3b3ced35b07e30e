// tile_queue.cuh: tiles of a mixture of experts, given out on demand: blocks whose tiles have few tokens take more.
//
// One thread of a block takes the next number from a counter in global memory, looks the tile up, and hands it to the
// block's roles in shared memory, one tile ahead. Row blocks of the same positions have neighbouring numbers, so they
// run at the same time and read those positions from memory once.
#pragma once

#include "../gemm/epilogue.cuh"
#include "sync/mbarrier.cuh"

struct ExpertArgs {             // by value, as ops/cuda/moe/packed_wide_experts.py fills it
  const unsigned char* weight;  // [E] packed matrices
  const bf16* bias;             // [E, rows] in the order of a matrix's rows, or null
  bf16* out;                    // [positions, out_columns]
  const int4* tiles;            // [tile_count]: expert, first position, last + 1
  const int* tile_count;        // [1]
  unsigned* next;               // [1], zero before and after
  long long matrix_bytes;       // from an expert's matrix to the next one's
  long long block_scales;       // offset in a matrix of float32 [row tile][column tile][slice][upper, lower 8 rows]
  long long row_scales;         // the same of float32 [64 row tiles]
  int rows;                     // outputs
  int row_blocks;               // of 128 rows
  int column_tiles;             // of 128 columns
  int out_columns;

  __device__ __forceinline__ const unsigned char* matrix(int expert) const { return weight + expert * matrix_bytes; }
};

struct ExpertTile {
  int expert, first, end, row_block;  // positions; expert is -1 past the last tile
};

struct TileQueue {
  static constexpr int kBytes = 32;  // of shared memory: a tile, two mbarriers

  uint32_t slot, full, empty;
  uint32_t parity = 0;  // of the next tile

  __device__ explicit TileQueue(uint32_t at) : slot(at), full(at + 16), empty(at + 24) {}

  __device__ __forceinline__ void init(int readers) const { mbarrier_init(full, 1), mbarrier_init(empty, readers); }

  // Give out tiles until none is left. The thread that takes the last number of all sets the counter back.
  __device__ __forceinline__ void fill(const ExpertArgs& args) {
    const unsigned count = static_cast<unsigned>(*args.tile_count) * args.row_blocks;
#pragma unroll 1
    for (bool has_more = true; has_more; parity ^= 1) {
      mbarrier_wait(empty, parity ^ 1);
      const unsigned number = atomicAdd(args.next, 1u), index = number / args.row_blocks;
      has_more = number < count;
      if (number == count + gridDim.x - 1) *args.next = 0;
      const int4 tile = has_more ? args.tiles[index] : make_int4(-1, 0, 0, 0);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(slot), "r"(tile.x), "r"(tile.y), "r"(tile.z),
                   "r"(number - index * args.row_blocks)
                   : "memory");
      mbarrier_arrive(full);
    }
  }

  // Take the next tile: a thread alone, or a warp.
  template <bool kIsWarp>
  __device__ __forceinline__ bool next(ExpertTile& tile) {
    mbarrier_wait(full, parity);
    const uint4 words = load_shared16(slot);
    tile.expert = words.x, tile.first = words.y, tile.end = words.z, tile.row_block = words.w;
    if (kIsWarp) __syncwarp();
    if (!kIsWarp || threadIdx.x % 32 == 0) mbarrier_arrive_after(empty, words.w);
    parity ^= 1;
    return tile.expert >= 0;
  }
};
