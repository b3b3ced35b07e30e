// paged_kv.cuh: a cache of keys and values in blocks, [L, P, Hkv, Tb, Dh], streamed in tiles of 16 tokens: of bf16
// here, of a quantized format in a file of its own.
//
// A cache derives from PagedTiles and has
//   Element                     of a row
//   kStages, kTileBytes         stages of a tile: K and V in one, or K in one and V in the next; bytes of a stage
//   kPartBytes                  of K, and of V
//   copy_stage(stream, to, row, stage)   from a row of the cache on, completing on stream.barrier()
//   Encoder                     a channel of the newest token's K or V as an Element
//   add_newest(keys, values, …) the newest token's Elements into their tile
//   Rows, Operands              of decode_tile.cuh
//   query_channel(i), channel_of(row)   in the order of Operands
//   key_scale, value_scale      of a layer, which multiply what is stored
#pragma once

#include "copy/async_copy.cuh"
#include "copy/tma.cuh"
#include "tile_scheduler.cuh"

// The rows of a tile in a stage, as decode_tile.cuh reads them.
struct SwizzledRows {
  uint32_t keys, values;
  int key_chunk, value_chunk, row;

  __device__ __forceinline__ SwizzledRows(uint32_t first_key, uint32_t first_value) {
    const int lane = threadIdx.x % 32, value_row = lane % 8 + lane / 16 * 8;
    row = lane % 8;  // all that the swizzle asks of the row
    keys = first_key + lane % 16 * 128, key_chunk = lane / 16;
    values = first_value + value_row * 128, value_chunk = lane / 8 % 2;
  }
  __device__ __forceinline__ uint32_t key(int i) const {
    return keys + i / 4 * (kTileTokens * 128) + ((i % 4 * 2 + key_chunk) ^ row) * 16;
  }
  __device__ __forceinline__ uint32_t value(int i) const {
    return values + i / 4 * (kTileTokens * 128) + ((i % 4 * 2 + value_chunk) ^ row) * 16;
  }
};

template <class Cache>
struct PagedTiles {
  // A warpgroup's tiles of a block's work tiles, each in a stage.
  template <class Stream, class Scheduler>
  static __device__ __forceinline__ void stream_tiles(Stream& stream, const Scheduler& scheduler) {
    const Args& args = stream.args;
    const CacheView& view = cache_view(args, stream.layer);
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int index = scheduler.begin, end = scheduler.end; index < end; index++) {
      const WorkTile work = scheduler.work_tile(index, view.window);
      const int tiles = (work.tiles - stream.warpgroup + 1) / 2;
#pragma unroll 1
      for (int base = 0; base < tiles; base += 32) {
        const int token = (work.first_tile + stream.warpgroup + 2 * (base + lane)) * kTileTokens;
        int row = 0;
        if (base + lane < tiles) {
          const int block = view.tables[work.sequence * view.table_width + token / args.block_tokens];
          row = ((index_in_cache(index_of_kind(stream.layer)) * view.kv_blocks + block) * kKvHeads + work.head) *
                    args.block_tokens +
                token % args.block_tokens;
        }
#pragma unroll 1
        for (int i = 0; i < min(32, tiles - base); i++) {
          const int from = __shfl_sync(kWholeWarp, row, i);
#pragma unroll
          for (int stage = 0; stage < Cache::kStages; stage++) {
            const uint32_t to = stream.acquire(Cache::kTileBytes);
            if (lane == 0) Cache::copy_stage(stream, to, from, stage);
            stream.commit();
          }
        }
      }
    }
  }

  // Where the newest token's K or V of a head goes in the cache.
  template <class Element>
  static __device__ __forceinline__ Element* row_of(const Args& args, bool is_key, int layer, int head, int64_t slot) {
    const CacheView& view = cache_view(args, layer);
    const int64_t tokens = args.block_tokens;
    const int64_t block = static_cast<int64_t>(index_in_cache(layer)) * view.kv_blocks + slot / tokens;
    const int64_t row = (block * kKvHeads + head) * tokens + slot % tokens;
    return static_cast<Element*>(is_key ? view.keys : view.values) + row * kHeadSize;
  }
};

__device__ __forceinline__ void store_shared(uint32_t to, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

// K, then V, in boxes of 64 channels with the 128-byte swizzle.
struct PagedKv : PagedTiles<PagedKv> {
  static constexpr int kBoxBytes = kTileTokens * 128, kBoxes = kHeadSize / 64, kPartBytes = kBoxes * kBoxBytes;
  static constexpr int kStages = kHeadSize > 128 ? 2 : 1, kTileBytes = 2 * kPartBytes / kStages;
  using Element = bf16;
  using Rows = SwizzledRows;
  using Operands = Bf16Operands;

  template <class Stream>
  static __device__ __forceinline__ void copy_stage(Stream& stream, uint32_t to, int row, int stage) {
    const uint32_t values = kStages > 1 ? to : to + kPartBytes;
#pragma unroll
    for (int box = 0; box < kBoxes; box++) {
      const int at = box * kBoxBytes;
      if (stage == 0) tma_load_2d(to + at, stream.keys, box * 64, row, stream.barrier(), kEvictFirst);
      if (stage + 1 == kStages) {
        tma_load_2d(values + at, stream.values, box * 64, row, stream.barrier(), kEvictFirst);
      }
    }
  }

  struct Encoder {
    __device__ __forceinline__ Encoder(const LayerWeights& layer, bool is_key) {}
    __device__ __forceinline__ bf16 operator()(bf16 x) const { return x; }
  };
  static __device__ __forceinline__ float key_scale(const LayerWeights& layer) { return 1.f; }
  static __device__ __forceinline__ float value_scale(const LayerWeights& layer) { return 1.f; }

  // The first channel of a lane's i-th pair of an operand, and that of a row of 16 of its sums.
  static __device__ __forceinline__ int query_channel(int i) { return i * 8 + threadIdx.x % 4 * 2; }
  static __device__ __forceinline__ int channel_of(int row) { return row; }

  // The tile that holds the sequence's last token was copied before that token was there; what lies beyond is
  // undefined, NaN too, and no score keeps a NaN of V out of a sum. By one warp.
  static __device__ __forceinline__ void add_newest(uint32_t keys, uint32_t values, int newest, const bf16* key,
                                                    const bf16* value) {
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < kHeadSize / 2; i += 32) {
      const int c = 2 * i;
      const uint32_t key_word = *reinterpret_cast<const uint32_t*>(key + c);
      const uint32_t value_word = *reinterpret_cast<const uint32_t*>(value + c);
      store_shared(keys + byte_of(newest, c), key_word);
      store_shared(values + byte_of(newest, c), value_word);
#pragma unroll 1
      for (int row = newest + 1; row < kTileTokens; row++) store_shared(values + byte_of(row, c), 0u);
    }
    fence_async_shared();  // the copy engine writes here next
    __syncwarp();
  }

 private:
  // Byte of channel c of row r of a tile's K, or of its V.
  static __device__ __forceinline__ int byte_of(int r, int c) {
    return c / 64 * (kTileTokens * 128) + r * 128 + ((c % 64 / 8) ^ (r % 8)) * 16 + c % 8 * 2;
  }
};
