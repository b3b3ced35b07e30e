// new_heads.cuh: Q, K and V of the newest token: norm, RoPE, and the cache.
//
// A warp takes one head at a time; lane l has channels l + 32 j. RoPE pairs channel c of the first R with c + R / 2.
#pragma once

#include "../polled.cuh"
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
  static constexpr int kCount = kHeadSize / 32, kPairs = kRotarySize / 2, kHeadRow = kHeadSize + 8;
  using Channels = float[kCount];  // of a lane
  const Args& args;
  const LayerWeights& weights;
  int layer;  // among those of attention

  // Of a work tile: the group's Q, and of a sequence's last split K and V too, as the cache has them. `heads`:
  // [group + 2][kHeadRow].
  __device__ __forceinline__ void prepare(const WorkTile& work, int sequences, bf16* heads) const {
    const int lane = threadIdx.x % 32, position = args.positions[work.sequence];
    const float* qkv = args.pre_rope_qkv + static_cast<int64_t>(layer % 2 * sequences + work.sequence) * kQkvRows;
    const int vectors = work.is_last() ? kGroup + 2 : kGroup;
    for (int vector = threadIdx.x / 32; vector < vectors; vector += 8) {
      const bool is_query = vector < kGroup, has_rope = vector <= kGroup;
      const int head = is_query           ? work.head * kGroup + vector
                       : vector == kGroup ? kHeads + work.head
                                          : kHeads + kKvHeads + work.head;
      Channels x;
      spin_until([&] {
        bool is_there = true;
#pragma unroll
        for (int j = 0; j < kCount; j++) {
          is_there &= is_written(x[j], qkv + head * kHeadSize + row_of_channel(lane + 32 * j));
        }
        return __all_sync(kWholeWarp, is_there);
      });
      if (kHasQkNorm && has_rope) norm(x, is_query ? weights.q_norm : weights.k_norm);
      if (has_rope) apply_rope(x, position);
      store(work, vector, x, heads);
    }
  }

 private:
  __device__ __forceinline__ void norm(Channels& x, const bf16* weight) const {
    float squares = 0.f;
#pragma unroll
    for (int j = 0; j < kCount; j++) squares += x[j] * x[j];
    const float scale = rsqrtf(warp_sum(squares) / kHeadSize + args.eps);
#pragma unroll
    for (int j = 0; j < kCount; j++) {
      x[j] *= scale * (__bfloat162float(weight[threadIdx.x % 32 + 32 * j]) + kNormOffset);
    }
  }

  __device__ __forceinline__ void apply_rope(Channels& x, int position) const {
    const int64_t angles = static_cast<int64_t>(min(max(position, 0), args.known_positions - 1)) * kPairs;
#pragma unroll
    for (int i = 0; i < kPairs / 32; i++) {
      const int64_t at = angles + threadIdx.x % 32 + 32 * i;
      const float cosine = args.cosines[at], sine = args.sines[at], low = x[i], high = x[i + kPairs / 32];
      x[i] = low * cosine - high * sine;
      x[i + kPairs / 32] = high * cosine + low * sine;
    }
  }

  __device__ __forceinline__ void store(const WorkTile& work, int vector, const Channels& x, bf16* heads) const {
    const int lane = threadIdx.x % 32;
    bf16* const query = heads + vector * kHeadRow;
    if (vector < kGroup) {
#pragma unroll
      for (int j = 0; j < kCount; j++) query[lane + 32 * j] = __float2bfloat16(x[j]);
      return;
    }
    const int64_t slot = cache_view(args, layer).slots[work.sequence];
    Element* const cached = Cache::template row_of<Element>(args, vector == kGroup, layer, work.head, slot);
    Element* const row = reinterpret_cast<Element*>(query);
    const typename Cache::Encoder encode(weights, vector == kGroup);
#pragma unroll
    for (int j = 0; j < kCount; j++) {
      const Element element = encode(__float2bfloat16(x[j]));
      row[lane + 32 * j] = element;
      if (slot >= 0) cached[lane + 32 * j] = element;
    }
  }
};
