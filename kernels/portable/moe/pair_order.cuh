// pair_order.cuh: the order of a mixture's pairs of a token and one of its experts, by expert, and the tiles of the
// experts' GEMMs; sort_pairs.cu sorts those of many tokens, route_tokens.cu those of up to 64.
#pragma once

#include "math/reduce.cuh"

struct SortArgs {
  const int* experts;  // [N, K], of each token different ones
  int* positions;      // [N, K]: of each pair in the sorted order, which keeps that of tokens
  int* rows;           // [N K], or [N (K + 1)]: the token at each position
  int4* tiles;         // [at most min(N K, E + N K / tile tokens)]: expert, first position, last + 1, 0; in order
  int* tile_count;     // [1]
  long long* loads;    // [E], to which the pairs of each expert are added, or null
  long long* calls;    // [E], to which 1 is added if there are any
  int pairs, chosen, tile_tokens;
  int has_shared;  // of few tokens: whether expert E, the shared one, has a position of every token behind the pairs
};

// Sum over lanes 0 to this one.
template <class T>
__device__ __forceinline__ T sum_up_to(T value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const T before = __shfl_up_sync(kWholeWarp, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

template <class T>
__device__ __forceinline__ T warp_total(T value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kWholeWarp, value, distance);
  return value;
}

// Shared memory for the order of up to 64 tokens' pairs.
struct FewPairs {
  unsigned* tokens;  // [2, E]: bits of the tokens of each expert, 32 a word; zero at first
  int* experts;      // [N K]
  unsigned* begins;  // [E]: of positions
  unsigned* sums;    // [warps]

  __device__ void add(const SortArgs& a, int count, int pair, int expert) const {
    const int token = pair / a.chosen;
    experts[pair] = expert;
    atomicOr(tokens + token / 32 * count + expert, 1u << token % 32);
  }

  // Write the order, by a block of kThreads threads behind a barrier: E <= 2 kThreads. Sums of pairs and of tiles are
  // the halves of one word: both are below 2^16.
  template <int kThreads>
  __device__ void sort(const SortArgs& a, int count) const {
    constexpr int kOwn = 2;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = threadIdx.x * kOwn;
    unsigned own[kOwn], total = 0;
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      const unsigned number = first + i < count ? __popc(tokens[first + i]) + __popc(tokens[count + first + i]) : 0;
      own[i] = number | (number + a.tile_tokens - 1) / a.tile_tokens << 16;
      total += own[i];
    }
    const unsigned up_to = sum_up_to(total);
    if (lane == 31) sums[warp] = up_to;
    __syncthreads();
    const unsigned of_warp = lane < kThreads / 32 ? sums[lane] : 0, all = warp_total(of_warp);
    unsigned before = up_to - total + warp_total(lane < warp ? of_warp : 0u);
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      if (first + i < count) place(a, first + i, own[i] & 0xffff, before);
      before += own[i];
    }
    const int own_tiles = static_cast<int>(all >> 16);
    if (threadIdx.x == 0) *a.tile_count = own_tiles + (a.has_shared ? place_shared(a, count, own_tiles) : 0);
    __syncthreads();
    for (int pair = threadIdx.x; pair < a.pairs; pair += kThreads) {
      const int expert = experts[pair], token = pair / a.chosen;
      const unsigned low = tokens[expert], high = tokens[count + expert], earlier = (1u << token % 32) - 1;
      const unsigned rank = token < 32 ? __popc(low & earlier) : __popc(low) + __popc(high & earlier);
      const int position = static_cast<int>(begins[expert] + rank);
      a.positions[pair] = position;
      a.rows[position] = token;
    }
    if (!a.has_shared) return;
    for (int token = threadIdx.x; token * a.chosen < a.pairs; token += kThreads) a.rows[a.pairs + token] = token;
  }

 private:
  // Write the tiles of the shared expert from `first` on; returns how many.
  __device__ int place_shared(const SortArgs& a, int expert, int first) const {
    const int end = a.pairs + a.pairs / a.chosen;
    int tiles = 0;
    for (int from = a.pairs; from < end; from += a.tile_tokens) {
      a.tiles[first + tiles++] = make_int4(expert, from, min(end, from + a.tile_tokens), 0);
    }
    return tiles;
  }

  // Write the tiles of an expert's pairs, and count them.
  __device__ void place(const SortArgs& a, int expert, unsigned number, unsigned before) const {
    const int begin = static_cast<int>(before & 0xffff), end = begin + static_cast<int>(number);
    begins[expert] = begin;
    int4* to = a.tiles + (before >> 16);
    for (int from = begin; from < end; from += a.tile_tokens) {
      *to++ = make_int4(expert, from, min(end, from + a.tile_tokens), 0);
    }
    if (a.loads && number) {
      atomicAdd(reinterpret_cast<unsigned long long*>(a.loads + expert), number);
      atomicAdd(reinterpret_cast<unsigned long long*>(a.calls + expert), 1);
    }
  }
};
