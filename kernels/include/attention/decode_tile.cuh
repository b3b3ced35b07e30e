// decode_tile.cuh: attention of one warp over one tile of 16 tokens: scores, online softmax, sums of V.
//
// Both matrix products are transposed, so that tokens and channels fill the 16 rows of m16n8k16 and query heads its 8
// columns: S^T = K q^T, O^T = V^T P^T. The heads of a KV head come in octets. `Rows` locates K and V in shared memory:
// key(i) and value(i) are the addresses of the lane's row for ldmatrix, from the i-th 16 channels on.
#pragma once

#include "math/bf16.cuh"
#include "math/reduce.cuh"
#include "mma/warp_mma.cuh"

constexpr int kTileTokens = WISP_DECODE_TILE_TOKENS;  // of a tile, which a warp multiplies at once
constexpr float kLowest = -1e30f;                     // below every score

// Softmax state of a warp for the heads 2 pair and 2 pair + 1 of each 8.
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

__device__ __forceinline__ float sum(const float (&halves)[1][4], int i) {
  return halves[0][i];
}
__device__ __forceinline__ float sum(const float (&halves)[2][4], int i) {
  return halves[0][i] + halves[1][i];
}

// K and V of 16 bits lie in memory as the tensor cores read them: 16 channels a load.
struct SixteenBitOperands {
  static constexpr int kSteps = 1;
  template <class Rows>
  __device__ __forceinline__ static void load_keys(uint32_t (&k)[1][4], const Rows& rows, int i) {
    load_matrices(k[0], rows.key(i));
  }
  template <class Rows>
  __device__ __forceinline__ static void load_values(uint32_t (&v)[1][4], const Rows& rows, int i) {
    load_matrices_transposed(v[0], rows.value(i));
  }
};

// Operands of the tensor cores: queries, K, V and probabilities. A load of K or V is kSteps times 16 channels.
struct Bf16Operands : SixteenBitOperands {
  __device__ __forceinline__ static uint32_t query(uint32_t pair) { return pair; }  // of bf16
  __device__ __forceinline__ static uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  __device__ __forceinline__ static void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_16x8x16(sums, a, b);
  }
};

// Attend to one tile: scores, softmax update, and the sums of V.
template <int kSize, int kOctets, class Operands = Bf16Operands, class Rows, class Seen>
__device__ __forceinline__ void attend(Gathered<kSize, kOctets>& all, const Rows& rows, int tile,
                                       const Queries<kSize, kOctets>& queries, float scale, const Seen& seen) {
  const int lane = threadIdx.x % 32;

  // 1. S^T: [16 tokens, 8 heads] of each octet, in two independent sums.
  constexpr int kSums = 2 / kOctets, kSteps = Operands::kSteps;
  float scores[kOctets][kSums][4] = {};
#pragma unroll
  for (int first = 0; first < kSize / 16; first += kSteps) {
    uint32_t k[kSteps][4];
    Operands::load_keys(k, rows, first);
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
      const int i = first + step;
#pragma unroll
      for (int octet = 0; octet < kOctets; octet++) {
        Operands::multiply(scores[octet][i % kSums], k[step], queries[octet][i]);
      }
    }
  }

  // 2. Softmax over tokens, which are spread over lanes of equal `pair`; P^T becomes the B operand.
  const bool sees_low = seen.has(tile * kTileTokens + lane / 4),
             sees_high = seen.has(tile * kTileTokens + lane / 4 + 8);
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
    weights[octet][0] = transpose_8x8(Operands::pack(low[0], low[1]));
    weights[octet][1] = transpose_8x8(Operands::pack(high[0], high[1]));
  }

  // 3. O^T += V^T P^T.
#pragma unroll
  for (int first = 0; first < kSize / 16; first += kSteps) {
    uint32_t v[kSteps][4];
    Operands::load_values(v, rows, first);
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
#pragma unroll
      for (int octet = 0; octet < kOctets; octet++) {
        Operands::multiply(all.sums[octet][first + step], v[step], weights[octet]);
      }
    }
  }
}
