// decode_step_attention.cuh: attention of one item: a part of a sequence, for the query heads of one KV head.
//
//   1. The new token's q (and of the last part k and v) are normed and rotated, once for the block, as soon as their
//      numbers have come; k and v go to the cache, and into the tile that came before them.
//   2. Tile t belongs to warpgroup t % 2, warp t / 2 % 4, whatever the batch: each keeps its own softmax.
//   3. The warps' sums are joined in order. A sequence in several parts leaves them in memory; the block that arrives
//      last joins them in order.
#pragma once

#include "decode_step_work.cuh"
#include "copy/tma.cuh"

__device__ __forceinline__ void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

// Where a tile's rows lie in a slot, as boxes of 64 channels with the 128-byte swizzle.
struct SwizzledRows {
  uint32_t keys, values;
  int key_chunk, value_chunk, row;

  __device__ __forceinline__ explicit SwizzledRows(uint32_t slot) {
    const int lane = threadIdx.x % 32, value_row = lane % 8 + lane / 16 * 8;
    row = lane % 8;  // all that the swizzle asks of the row
    keys = slot + lane % 16 * 128, key_chunk = lane / 16;
    values = slot + kTileTokens * kHeadSize * 2 + value_row * 128, value_chunk = lane / 8 % 2;
  }
  __device__ __forceinline__ uint32_t key(int i) const {
    return keys + i / 4 * (kTileTokens * 128) + ((i % 4 * 2 + key_chunk) ^ row) * 16;
  }
  __device__ __forceinline__ uint32_t value(int i) const {
    return values + i / 4 * (kTileTokens * 128) + ((i % 4 * 2 + value_chunk) ^ row) * 16;
  }
};

// Byte of channel c of row r of a tile's K, or of its V.
__device__ __forceinline__ int tile_byte(int r, int c) {
  return c / 64 * (kTileTokens * 128) + r * 128 + ((c % 64 / 8) ^ (r % 8)) * 16 + c % 8 * 2;
}

// Row of Q, K or V, of its head, that holds channel c.
__device__ __forceinline__ int row_of_channel(int c) {
  if constexpr (kLiesByHeads) {
    const int half = c / (kHeadSize / 2), i = c % (kHeadSize / 2);
    return i / 32 * 64 + half * 32 + i % 32;
  }
  return c;
}

struct Joined2 {
  float2 sum = {0.f, 0.f};
  float highest = kLowest, weight = 0.f;

  __device__ __forceinline__ void add(float2 more, float2 stat) {
    const float top = fmaxf(highest, stat.x), old = exp2f(highest - top), fresh = exp2f(stat.x - top);
    sum.x = sum.x * old + more.x * fresh, sum.y = sum.y * old + more.y * fresh;
    weight = weight * old + stat.y * fresh;
    highest = top;
  }
};

template <int N>
class Attention {
 public:
  __device__ __forceinline__ Attention(const Args& args, unsigned char* shared, Small<N>& small, const Watch& watch,
                                       int phase)
      : args_(args),
        small_(small),
        watch_(watch),
        phase_(phase),
        sums_(reinterpret_cast<float*>(shared + Room<N>::kRegion)),
        stats_(reinterpret_cast<float2*>(sums_ + 8 * kGroup * kRow)),
        first_heads_(reinterpret_cast<bf16*>(stats_ + 8 * kGroup)),
        heads_(first_heads_) {}

  // The items of this block. `next_slot(use)` waits for the warpgroup's next slot, calls use(its address), and gives it
  // back. What the next item asks of memory is asked for while this one's tiles come in.
  template <class NextSlot>
  __device__ __forceinline__ void run(const Work<N>& work, const Layer& layer, int layer_index, NextSlot next_slot) {
    if (work.begin == work.end) return;
    prepare(work.item(work.begin), layer, layer_index);
#pragma unroll 1
    for (int i = work.begin; i < work.end; i++) {
      bool has_prepared = i + 1 == work.end;
      run_item(work.item(i), next_slot, [&] {
        if (has_prepared) return;
        has_prepared = true;
        heads_ = other_heads();
        prepare(work.item(i + 1), layer, layer_index);
        heads_ = other_heads();
      });
      heads_ = other_heads();
    }
  }

 private:
  static constexpr int kHeadsElements = (kGroup + 2) * (kHeadSize + 8);
  static constexpr int kRow = kHeadSize + 4, kHeadRow = kHeadSize + 8, kPairs = kHeadSize / 2;

  __device__ __forceinline__ bf16* other_heads() const {
    return heads_ == first_heads_ ? first_heads_ + kHeadsElements : first_heads_;
  }

  template <class NextSlot, class Prepare>
  __device__ __forceinline__ void run_item(const Item& item, NextSlot next_slot, Prepare prepare_next) {
    sync_consumers();  // what was prepared is there

    // The warp's queries and tiles.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warpgroup = warp / 4;
    Queries<kHeadSize, 1> queries;
#pragma unroll
    for (int i = 0; i < kHeadSize / 8; i++) {
      const bf16* from = heads_ + lane / 4 * kHeadRow + i * 8 + lane % 4 * 2;
      queries[0][i / 2][i % 2] = lane / 4 < kGroup ? *reinterpret_cast<const uint32_t*>(from) : 0u;
    }
    Gathered<kHeadSize, 1> all;
#pragma unroll 1
    for (int t = warpgroup; t < item.tiles; t += 2) {
      next_slot([&](uint32_t slot) {
        if (t / 2 % 4 != warp % 4) return;
        const int tile = item.first_tile + t;
        if ((tile + 1) * kTileTokens >= item.end) finish_tile(item, slot, tile);
        attend<kHeadSize, 1>(all, SwizzledRows(slot), tile, queries, args_.scale, item);
      });
      if (t / 2 % 4 == warp % 4) prepare_next();
    }
    prepare_next();
    gather(all);
    sync_consumers();
    leave(item);
  }

  // Step 1: a warp takes one head at a time; lane l has channels l + 32 i and those they rotate with.
  __device__ __forceinline__ void prepare(const Item& item, const Layer& layer, int layer_index) {
    const int lane = threadIdx.x % 32, position = args_.positions[item.sequence];
    const float* raw = args_.raw + static_cast<int64_t>(layer_index % 2 * N + item.sequence) * kQkvRows;
    const int vectors = item.is_last() ? kGroup + 2 : kGroup;
    for (int vector = threadIdx.x / 32; vector < vectors; vector += 8) {
      const bool is_query = vector < kGroup, rotates = vector <= kGroup;
      const int head = is_query           ? item.head * kGroup + vector
                       : vector == kGroup ? kHeads + item.head
                                          : kHeads + kKvHeads + item.head;
      float low[kPairs / 32], high[kPairs / 32];
      watch_.until(
          [&] {
            bool is_there = true;
#pragma unroll
            for (int i = 0; i < kPairs / 32; i++) {
              is_there &= has_come(low[i], raw + head * kHeadSize + row_of_channel(lane + 32 * i));
              is_there &= has_come(high[i], raw + head * kHeadSize + row_of_channel(lane + 32 * i + kPairs));
            }
            return __all_sync(kWholeWarp, is_there);
          },
          kRaw, phase_);
      if (kHasQkNorm && rotates) norm(low, high, is_query ? layer.q_norm : layer.k_norm);
      if (rotates) rotate(low, high, position);
      store(item, vector, low, high, layer_index);
    }
  }

  // Q, K and V come without a barrier: each float tells by itself whether it has been written.
  static __device__ __forceinline__ bool has_come(float& value, const float* from) {
    unsigned bits;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(from) : "memory");
    value = __uint_as_float(bits);
    return bits != kNotYet;
  }

  __device__ __forceinline__ void norm(float (&low)[kPairs / 32], float (&high)[kPairs / 32], const bf16* weight) {
    const int lane = threadIdx.x % 32;
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < kPairs / 32; i++) squares += low[i] * low[i] + high[i] * high[i];
    const float scale = rsqrtf(warp_sum(squares) / kHeadSize + args_.eps);
#pragma unroll
    for (int i = 0; i < kPairs / 32; i++) {
      low[i] *= scale * __bfloat162float(weight[lane + 32 * i]);
      high[i] *= scale * __bfloat162float(weight[lane + 32 * i + kPairs]);
    }
  }

  __device__ __forceinline__ void rotate(float (&low)[kPairs / 32], float (&high)[kPairs / 32], int position) {
    const int64_t angles = static_cast<int64_t>(min(max(position, 0), args_.known_positions - 1)) * kPairs;
#pragma unroll
    for (int i = 0; i < kPairs / 32; i++) {
      const int64_t at = angles + threadIdx.x % 32 + 32 * i;
      const float cosine = args_.cosines[at], sine = args_.sines[at], x = low[i];
      low[i] = x * cosine - high[i] * sine;
      high[i] = high[i] * cosine + x * sine;
    }
  }

  __device__ __forceinline__ void store(const Item& item, int vector, const float (&low)[kPairs / 32],
                                        const float (&high)[kPairs / 32], int layer_index) {
    const int lane = threadIdx.x % 32;
    const int64_t slot = args_.slots[item.sequence], tokens = args_.block_tokens;
    const int64_t block = static_cast<int64_t>(layer_index) * args_.kv_blocks + slot / tokens;
    const int64_t row = (block * kKvHeads + item.head) * tokens + slot % tokens;
    bf16* cached = (vector == kGroup ? args_.keys : args_.values) + row * kHeadSize;
    const bool is_cached = vector >= kGroup && slot >= 0;
#pragma unroll
    for (int i = 0; i < kPairs / 32; i++) {
      const bf16 a = __float2bfloat16(low[i]), b = __float2bfloat16(high[i]);
      const int c = lane + 32 * i;
      heads_[vector * kHeadRow + c] = a, heads_[vector * kHeadRow + c + kPairs] = b;
      if (is_cached) cached[c] = a, cached[c + kPairs] = b;
    }
  }

  // The tile that holds the sequence's last token was copied before that token was there; of what lies beyond nothing
  // is known, NaN too, and no score keeps a NaN of V out of a sum.
  __device__ __forceinline__ void finish_tile(const Item& item, uint32_t slot, int tile) {
    const int newest = item.end - 1 - tile * kTileTokens;
    const uint32_t values = slot + kTileTokens * kHeadSize * 2;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < kHeadSize / 2; i += 32) {
      const int c = 2 * i;
      const uint32_t key = *reinterpret_cast<const uint32_t*>(heads_ + kGroup * kHeadRow + c);
      const uint32_t value = *reinterpret_cast<const uint32_t*>(heads_ + (kGroup + 1) * kHeadRow + c);
      store_word(slot + tile_byte(newest, c), key);
      store_word(values + tile_byte(newest, c), value);
#pragma unroll 1
      for (int row = newest + 1; row < kTileTokens; row++) store_word(values + tile_byte(row, c), 0u);
    }
    fence_async_shared();  // the copy engine writes here next
    __syncwarp();
  }

  static __device__ __forceinline__ void store_word(uint32_t to, uint32_t word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
  }

  // Step 3: each warp's sums to shared memory, [warp][head][channel].
  __device__ __forceinline__ void gather(const Gathered<kHeadSize, 1>& all) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int head = lane % 4 * 2 + e;
      float weight = all.weight[0][e];
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) weight += __shfl_xor_sync(kWholeWarp, weight, distance);
      if (head < kGroup) {
        float* to = sums_ + (warp * kGroup + head) * kRow;
#pragma unroll
        for (int i = 0; i < kHeadSize / 16; i++) {
          to[i * 16 + lane / 4] = all.sums[0][i][e];
          to[i * 16 + lane / 4 + 8] = all.sums[0][i][e + 2];
        }
        if (lane / 4 == 0) stats_[warp * kGroup + head] = make_float2(all.highest[0][e], weight);
      }
    }
  }

  __device__ __forceinline__ void leave(const Item& item) {
    constexpr int kChunks = kGroup * kPairs;  // two channels each
    const int items = args_.sequences * kKvHeads, place = item.sequence * kKvHeads + item.head;
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < kChunks; chunk += kConsumers) {
      const int head = chunk / kPairs, c = chunk % kPairs * 2;
      Joined2 joined;
#pragma unroll
      for (int warp = 0; warp < 8; warp++) {
        const int from = warp * kGroup + head;
        joined.add(*reinterpret_cast<const float2*>(sums_ + from * kRow + c), stats_[from]);
      }
      if (item.parts == 1) {
        write(item, head, c, joined);
      } else {
        const int at = (item.part * items + place) * kGroup + head;
        *reinterpret_cast<float2*>(args_.parts + static_cast<int64_t>(at) * kHeadSize + c) = joined.sum;
        if (c == 0) args_.stats[at] = make_float2(joined.highest, joined.weight);
      }
    }
    if (item.parts > 1) join_parts(item, items, place);
    sync_consumers();  // the next item overwrites what was read here
  }

  __device__ __forceinline__ void join_parts(const Item& item, int items, int place) {
    sync_consumers();
    if (threadIdx.x == 0) {
      unsigned before;
      asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(args_.arrived + place), "r"(item.parts - 1)
                   : "memory");
      small_.is_last = before == item.parts - 1;
    }
    sync_consumers();
    if (!small_.is_last) return;
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < kGroup * kPairs; chunk += kConsumers) {
      const int head = chunk / kPairs, c = chunk % kPairs * 2;
      Joined2 joined;
#pragma unroll 4
      for (int part = 0; part < item.parts; part++) {
        const int at = (part * items + place) * kGroup + head;
        const float* from = args_.parts + static_cast<int64_t>(at) * kHeadSize + c;
        joined.add(__ldcg(reinterpret_cast<const float2*>(from)), __ldcg(args_.stats + at));
      }
      write(item, head, c, joined);
    }
  }

  __device__ __forceinline__ void write(const Item& item, int head, int c, const Joined2& joined) {
    const float inverse = 1.f / joined.weight;
    const int64_t row = static_cast<int64_t>(item.sequence) * kQueryRows;
    *reinterpret_cast<uint32_t*>(args_.attended + row + (item.head * kGroup + head) * kHeadSize + c) =
        pack_bf16(joined.sum.x * inverse, joined.sum.y * inverse);
  }

  const Args& args_;
  Small<N>& small_;
  const Watch& watch_;
  const int phase_;
  float* const sums_;
  float2* const stats_;
  bf16* const first_heads_;
  bf16* heads_;  // of two in turn: q, k and v of the item, and of the next
};
