// decode_attention.cuh: what one warp does in decode_attention.cu: stream tiles of K and V, multiply, keep a softmax.
//
// Both products are transposed, so that tokens and channels fill the 16 rows of m16n8k16 and query heads its 8 columns:
// S^T = K q^T, O^T = V^T P^T. The heads of a KV head come in octets.
#pragma once

#include "async_copy.cuh"
#include "bf16.cuh"
#include "decode_work.cuh"
#include "pdl.cuh"
#include "reduce.cuh"
#include "warp_mma.cuh"

constexpr int kStages = 2;         // tiles under way, a warp
constexpr int kBlocks = 3;         // of a multiprocessor, as far as shared memory goes
constexpr float kLowest = -1e30f;  // below every score

template <int kSize>
struct Layout {
  static constexpr int kWarps = kSize > 128 ? 2 : 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRow = kSize + 8;  // elements: rows 16 bytes apart modulo 128, so that no two share banks
  static constexpr int kRowBytes = kRow * 2;
  static constexpr int kTileBytes = kTokens * kRowBytes;  // of K, and again of V
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kWarpBytes = kStages * kStageBytes;
  static constexpr int kPartRow = kSize + 4;  // floats of a head's sum in shared memory; banks again
};

// Where 8 tokens of a tile lie, which are always within one KV block.
struct Half {
  int block, offset;

  __device__ __forceinline__ Half(unsigned token, const int* table, const Shape& shape) {
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

struct Tile {
  int number;
  Half low, high;

  __device__ __forceinline__ Tile(int number, const int* table, const Shape& shape)
      : number(number), low(number * kTokens, table, shape), high(number * kTokens + 8, table, shape) {}
};

// Start the copies of a tile's K and V into one stage of the warp's ring. What the query does not see, and channels
// past Dh, become zeros: whatever lies there, NaN too, is not read. A tile is whole where there is neither.
template <int kSize, bool kIsWhole>
__device__ __forceinline__ void copy_tile(uint32_t stage, const Tile& tile, const bf16* keys, const bf16* values,
                                          const Shape& shape, const Seen& seen) {
  using L = Layout<kSize>;
  constexpr int kChunks = kSize / kBf16Vec, kRows = kChunks > 16 ? 1 : kChunks > 8 ? 2 : 4;  // rows in one instruction
  const int lane = threadIdx.x % 32, lane_row = lane / kChunks, channel = lane % kChunks * kBf16Vec;
  if (lane_row >= kRows) return;
  const int size = kIsWhole ? kSize : shape.head_size, place = lane_row * size + channel;
  const int64_t low = tile.low.start(shape) + place, high = tile.high.start(shape) + place;
  const bf16* const from[4] = {keys + low, keys + high, values + low, values + high};
  const uint32_t to = stage + lane_row * L::kRowBytes + channel * 2;
#pragma unroll
  for (int row = 0; row < kTokens; row += kRows) {
    const bool exists = kIsWhole || (seen.has(tile.number * kTokens + row + lane_row) && channel < size);
    copy16_async_of_line(to + row * L::kRowBytes, from[row / 8] + row % 8 * size, exists);
    copy16_async_of_line(to + row * L::kRowBytes + L::kTileBytes, from[2 + row / 8] + row % 8 * size, exists);
  }
}

// What a warp has gathered for the heads 2 pair and 2 pair + 1 of each 8.
template <int kSize, int kOctets>
struct Gathered {
  float sums[kOctets][kSize / 16][4] = {};  // O^T, times 2^highest
  float highest[kOctets][2], weight[kOctets][2] = {};

  __device__ __forceinline__ Gathered() {
#pragma unroll
    for (int octet = 0; octet < kOctets; octet++) highest[octet][0] = highest[octet][1] = kLowest;
  }
};

template <int kSize, int kOctets>
using Queries = uint32_t[kOctets][kSize / 16][2];

// q^T as the B operand: head `group` of each octet; heads past G and channels past Dh are zeros.
template <int kSize, int kOctets>
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
      queries[octet][i / 2][i % 2] = exists ? *reinterpret_cast<const uint32_t*>(row + column) : 0u;
    }
  }
}

__device__ __forceinline__ float sum(const float (&parts)[1][4], int i) {
  return parts[0][i];
}
__device__ __forceinline__ float sum(const float (&parts)[2][4], int i) {
  return parts[0][i] + parts[1][i];
}

// One tile: scores, their softmax against what came before, and the sums of V.
template <int kSize, int kOctets>
__device__ __forceinline__ void attend(Gathered<kSize, kOctets>& all, uint32_t stage, int tile,
                                       const Queries<kSize, kOctets>& queries, float scale, const Seen& seen) {
  using L = Layout<kSize>;
  const int lane = threadIdx.x % 32;

  // 1. S^T: [16 tokens, 8 heads] of each octet, in two sums that do not wait for each other.
  constexpr int kSums = 2 / kOctets;
  float scores[kOctets][kSums][4] = {};
  const uint32_t k_rows = stage + lane % 16 * L::kRowBytes + lane / 16 * 16;
#pragma unroll
  for (int i = 0; i < kSize / 16; i++) {
    uint32_t k[4];
    load_matrices(k, k_rows + i * 32);
#pragma unroll
    for (int octet = 0; octet < kOctets; octet++) mma_16x8x16(scores[octet][i % kSums], k, queries[octet][i]);
  }

  // 2. Softmax over tokens, which lie across lanes of equal `pair`; P^T becomes the B operand.
  const bool sees_low = seen.has(tile * kTokens + lane / 4), sees_high = seen.has(tile * kTokens + lane / 4 + 8);
  uint32_t weights[kOctets][2];
#pragma unroll
  for (int octet = 0; octet < kOctets; octet++) {
    float low[2], high[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      low[e] = sees_low ? sum(scores[octet], e) * scale : -INFINITY;
      high[e] = sees_high ? sum(scores[octet], e + 2) * scale : -INFINITY;
      float highest = fmaxf(low[e], high[e]);
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(kWholeWarp, highest, distance));
      }
      highest = fmaxf(highest, all.highest[octet][e]);
      const float shrink = exp2f(all.highest[octet][e] - highest);
      all.highest[octet][e] = highest;
      low[e] = exp2f(low[e] - highest), high[e] = exp2f(high[e] - highest);
      all.weight[octet][e] = all.weight[octet][e] * shrink + low[e] + high[e];
#pragma unroll
      for (int i = 0; i < kSize / 16; i++) all.sums[octet][i][e] *= shrink, all.sums[octet][i][e + 2] *= shrink;
    }
    weights[octet][0] = transpose_8x8(pack_bf16(low[0], low[1]));
    weights[octet][1] = transpose_8x8(pack_bf16(high[0], high[1]));
  }

  // 3. O^T += V^T P^T.
  const uint32_t v_rows = stage + L::kTileBytes + (lane % 8 + lane / 16 * 8) * L::kRowBytes + lane / 8 % 2 * 16;
#pragma unroll
  for (int i = 0; i < kSize / 16; i++) {
    uint32_t v[4];
    load_matrices_transposed(v, v_rows + i * 32);
#pragma unroll
    for (int octet = 0; octet < kOctets; octet++) mma_16x8x16(all.sums[octet][i], v, weights[octet]);
  }
}
