// decode_copy.cuh: copy tiles of K and V in bf16 to shared memory, for one warp of decode_attention.cuh.
#pragma once

#include "attention/decode_tile.cuh"
#include "copy/async_copy.cuh"
#include "decode_scheduler.cuh"
#include "math/bf16.cuh"
#include "sync/pdl.cuh"

constexpr int kBlocks = WISP_DECODE_BLOCKS_PER_SM;  // of a multiprocessor, if shared memory suffices

template <int kSize>
struct SmemLayout {
  static constexpr int kWarps = kSize > 128 ? 2 : 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRow = kSize + 8;  // elements: rows 16 bytes apart modulo 128, against bank conflicts
  static constexpr int kRowBytes = kRow * 2;
  static constexpr int kTileBytes = kTileTokens * kRowBytes;  // of K, and again of V
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kStages = WISP_DECODE_STAGES;  // tiles in flight, a warp
  static constexpr int kWarpBytes = kStages * kStageBytes;
  static constexpr int kHeadRow = kSize + 4;  // floats of a head's sums in shared memory, padded against bank conflicts
};

// Address of 8 tokens of a tile, which are always within one KV block.
struct HalfTile {
  int block, offset;

  __device__ __forceinline__ HalfTile(unsigned token, const int* table, const Shape& shape) {
    const unsigned index = __umulhi(token, shape.reciprocal);
    offset = token - index * shape.block_tokens;
    block = table[min(index, shape.table_width - 1u)];
  }
  // Its first element in keys or values.
  __device__ __forceinline__ int64_t start(const Shape& shape) const {
    const int64_t head = static_cast<int64_t>(block) * shape.kv_heads + blockIdx.x;
    return (head * shape.block_tokens + offset) * shape.head_size;
  }
};

struct KvTile {
  int number;
  HalfTile low, high;

  __device__ __forceinline__ KvTile(int number, const int* table, const Shape& shape)
      : number(number), low(number * kTileTokens, table, shape), high(number * kTileTokens + 8, table, shape) {}
};

// Addresses of the lane's rows of a tile in a stage, for step i over channels: 16 channels of K, or of V.
template <int kSize>
struct PaddedRows {
  using L = SmemLayout<kSize>;
  uint32_t keys, values;

  __device__ __forceinline__ explicit PaddedRows(uint32_t stage) {
    const int lane = threadIdx.x % 32;
    keys = stage + lane % 16 * L::kRowBytes + lane / 16 * 16;
    values = stage + L::kTileBytes + (lane % 8 + lane / 16 * 8) * L::kRowBytes + lane / 8 % 2 * 16;
  }
  __device__ __forceinline__ uint32_t key(int i) const { return keys + i * 32; }
  __device__ __forceinline__ uint32_t value(int i) const { return values + i * 32; }
};

// A cache of bf16, for decode_attention.cuh.
struct PlainKv {
  using Element = bf16;
  using Shape = ::Shape;
  using Operands = Bf16Operands;
  static constexpr bool kHasValueScale = false;
  template <int kSize>
  using SmemLayout = ::SmemLayout<kSize>;

  // Start the copies of a tile's K and V into one stage of the warp's pipeline. Tokens that the query does not attend
  // to and channels past Dh become zeros: their memory, which may hold NaN, is not read. A tile is full if it has
  // neither.
  template <int kSize, bool kIsFull>
  __device__ __forceinline__ static void copy_tile(uint32_t stage, const KvTile& tile, const bf16* keys,
                                                   const bf16* values, const Shape& shape,
                                                   const VisibleRange& visible) {
    using L = ::SmemLayout<kSize>;
    constexpr int kChunks = kSize / kBf16Vec, kRows = kChunks > 16  ? 1
                                                      : kChunks > 8 ? 2
                                                                    : 4;  // rows in one instruction
    const int lane = threadIdx.x % 32, lane_row = lane / kChunks, channel = lane % kChunks * kBf16Vec;
    if (lane_row >= kRows) return;
    const int size = kIsFull ? kSize : shape.head_size, offset = lane_row * size + channel;
    const int64_t low = tile.low.start(shape) + offset, high = tile.high.start(shape) + offset;
    const bf16* const from[4] = {keys + low, keys + high, values + low, values + high};
    const uint32_t to = stage + lane_row * L::kRowBytes + channel * 2;
#pragma unroll
    for (int row = 0; row < kTileTokens; row += kRows) {
      const bool exists = kIsFull || (visible.has(tile.number * kTileTokens + row + lane_row) && channel < size);
      copy16_async_of_line(to + row * L::kRowBytes, from[row / 8] + row % 8 * size, exists);
      copy16_async_of_line(to + row * L::kRowBytes + L::kTileBytes, from[2 + row / 8] + row % 8 * size, exists);
    }
  }

  // The rows of a tile that has arrived in a stage; `mine` is the warp's shared memory.
  template <int kSize>
  __device__ __forceinline__ static PaddedRows<kSize> rows(uint32_t stage, uint32_t mine, int tile, const Shape& shape,
                                                           const VisibleRange& visible) {
    return PaddedRows<kSize>(stage);
  }
};

// q^T as the B operand: head `group` of each octet; heads past G and channels past Dh are zeros.
template <int kSize, int kOctets, class Operands>
__device__ __forceinline__ void load_queries(Queries<kSize, kOctets>& queries, const bf16* q, const Shape& shape) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int octet = 0; octet < kOctets; octet++) {
    const int head = octet * 8 + lane / 4;
    const bf16* row = q + head * shape.head_size;
#pragma unroll
    for (int i = 0; i < kSize / 8; i++) {
      const int column = i * 8 + lane % 4 * 2;
      const bool exists = head < shape.group && column < shape.head_size;
      queries[octet][i / 2][i % 2] = exists ? Operands::query(*reinterpret_cast<const uint32_t*>(row + column)) : 0u;
    }
  }
}
