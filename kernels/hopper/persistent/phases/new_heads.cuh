// new_heads.cuh: Q, K and V of the newest token: norm, RoPE, and the cache.
//
// A warp takes one head at a time; lane l has channels l + 32 i and those they are rotated with.
#pragma once

#include "../hang_detector.cuh"
#include "math/reduce.cuh"
#include "tile_scheduler.cuh"

// Row of Q, K or V, of its head, that holds channel c.
__device__ __forceinline__ int row_of_channel(int c) {
  if constexpr (kOrderedByHeads) {
    const int half = c / (kHeadSize / 2), i = c % (kHeadSize / 2);
    return i / 32 * 64 + half * 32 + i % 32;
  }
  return c;
}

template <class Cache>
struct NewHeads {
  using Element = typename Cache::Element;
  static constexpr int kPairs = kHeadSize / 2, kHeadRow = kHeadSize + 8;
  const Args& args;
  const LayerWeights& weights;
  int layer, phase;

  // Of a work tile: the group's Q, and of a sequence's last split K and V too, as the cache has them. `heads`:
  // [group + 2][kHeadRow].
  __device__ __forceinline__ void prepare(const WorkTile& work, int sequences, const HangDetector& detector,
                                          bf16* heads) const {
    const int lane = threadIdx.x % 32, position = args.positions[work.sequence];
    const float* qkv = args.pre_rope_qkv + static_cast<int64_t>(layer % 2 * sequences + work.sequence) * kQkvRows;
    const int vectors = work.is_last() ? kGroup + 2 : kGroup;
    for (int vector = threadIdx.x / 32; vector < vectors; vector += 8) {
      const bool is_query = vector < kGroup, has_rope = vector <= kGroup;
      const int head = is_query           ? work.head * kGroup + vector
                       : vector == kGroup ? kHeads + work.head
                                          : kHeads + kKvHeads + work.head;
      float low[kPairs / 32], high[kPairs / 32];
      detector.until(
          [&] {
            bool is_there = true;
#pragma unroll
            for (int i = 0; i < kPairs / 32; i++) {
              is_there &= is_written(low[i], qkv + head * kHeadSize + row_of_channel(lane + 32 * i));
              is_there &= is_written(high[i], qkv + head * kHeadSize + row_of_channel(lane + 32 * i + kPairs));
            }
            return __all_sync(kWholeWarp, is_there);
          },
          kPreRopeQkv, phase);
      if (kHasQkNorm && has_rope) norm(low, high, is_query ? weights.q_norm : weights.k_norm);
      if (has_rope) apply_rope(low, high, position);
      store(work, vector, low, high, heads);
    }
  }

 private:
  // Q, K and V come without a barrier: each float shows by itself whether it has been written.
  static __device__ __forceinline__ bool is_written(float& value, const float* from) {
    unsigned bits;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(from) : "memory");
    value = __uint_as_float(bits);
    return bits != kNotYet;
  }

  __device__ __forceinline__ void norm(float (&low)[kPairs / 32], float (&high)[kPairs / 32],
                                       const bf16* weight) const {
    const int lane = threadIdx.x % 32;
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < kPairs / 32; i++) squares += low[i] * low[i] + high[i] * high[i];
    const float scale = rsqrtf(warp_sum(squares) / kHeadSize + args.eps);
#pragma unroll
    for (int i = 0; i < kPairs / 32; i++) {
      low[i] *= scale * __bfloat162float(weight[lane + 32 * i]);
      high[i] *= scale * __bfloat162float(weight[lane + 32 * i + kPairs]);
    }
  }

  __device__ __forceinline__ void apply_rope(float (&low)[kPairs / 32], float (&high)[kPairs / 32],
                                             int position) const {
    const int64_t angles = static_cast<int64_t>(min(max(position, 0), args.known_positions - 1)) * kPairs;
#pragma unroll
    for (int i = 0; i < kPairs / 32; i++) {
      const int64_t at = angles + threadIdx.x % 32 + 32 * i;
      const float cosine = args.cosines[at], sine = args.sines[at], x = low[i];
      low[i] = x * cosine - high[i] * sine;
      high[i] = high[i] * cosine + x * sine;
    }
  }

  __device__ __forceinline__ void store(const WorkTile& work, int vector, const float (&low)[kPairs / 32],
                                        const float (&high)[kPairs / 32], bf16* heads) const {
    const int lane = threadIdx.x % 32;
    bf16* const query = heads + vector * kHeadRow;
    if (vector < kGroup) {
#pragma unroll
      for (int i = 0; i < kPairs / 32; i++) {
        const int c = lane + 32 * i;
        query[c] = __float2bfloat16(low[i]), query[c + kPairs] = __float2bfloat16(high[i]);
      }
      return;
    }
    const int64_t slot = args.slots[work.sequence];
    Element* const cached = Cache::template row_of<Element>(args, vector == kGroup, layer, work.head, slot);
    Element* const row = reinterpret_cast<Element*>(query);
    const typename Cache::Encoder encode(weights, vector == kGroup);
#pragma unroll
    for (int i = 0; i < kPairs / 32; i++) {
      const Element a = encode(__float2bfloat16(low[i])), b = encode(__float2bfloat16(high[i]));
      const int c = lane + 32 * i;
      row[c] = a, row[c + kPairs] = b;
      if (slot >= 0) cached[c] = a, cached[c + kPairs] = b;
    }
  }
};
