// decode_attention.cuh: decode attention over a paged cache, of bf16 (decode_attention.cu) or of a quantized format.
//
// `Cache` says how tiles of K and V are copied, read and multiplied: Element, Shape, Operands, SmemLayout, copy_tile,
// rows and kHasValueScale, as PlainKv of decode_copy.cuh.
#pragma once

#include "decode_copy.cuh"
#include "math/constants.cuh"
#include "sync/count_up_to.cuh"

// Softmax state combined over several warps or splits, in order: sums of V, their maximum and weight.
struct Combined {
  float4 sum = {0.f, 0.f, 0.f, 0.f};
  float highest = kLowest, weight = 0.f;

  __device__ __forceinline__ void add(const float4& more, float2 stat) {
    const float top = fmaxf(highest, stat.x), old = exp2f(highest - top), fresh = exp2f(stat.x - top);
    sum.x = sum.x * old + more.x * fresh, sum.y = sum.y * old + more.y * fresh;
    sum.z = sum.z * old + more.z * fresh, sum.w = sum.w * old + more.w * fresh;
    weight = weight * old + stat.y * fresh;
    highest = top;
  }
  // A head's sink takes part in the softmax once, whatever the splits, and has no value.
  __device__ __forceinline__ void add_sink(float logit) {
    add(make_float4(0.f, 0.f, 0.f, 0.f), make_float2(logit * kLog2E, 1.f));
  }
  template <class Cache>
  __device__ __forceinline__ void write(bf16* out, const typename Cache::Shape& shape) const {
    float inverse = 1.f / weight;
    if constexpr (Cache::kHasValueScale) inverse *= shape.value_scale;
    *reinterpret_cast<uint2*>(out) =
        make_uint2(pack_bf16(sum.x * inverse, sum.y * inverse), pack_bf16(sum.z * inverse, sum.w * inverse));
  }
};

// Results of the warps of a block, in shared memory: each warp's sums overwrite its own pipeline stages.
template <class Cache, int kSize, int kOctets>
struct Shared {
  using L = typename Cache::template SmemLayout<kSize>;
  float2 stats[L::kWarps][kOctets * 8];
  WorkTile work;
  bool is_last;

  __device__ __forceinline__ static float* sums(unsigned char* ring, int warp) {
    return reinterpret_cast<float*>(ring + warp * L::kWarpBytes);
  }

  __device__ __forceinline__ void store(const Gathered<kSize, kOctets>& all, unsigned char* ring) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* to = sums(ring, warp) + lane / 4;
#pragma unroll
    for (int octet = 0; octet < kOctets; octet++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int head = octet * 8 + lane % 4 * 2 + e;
        float weight = all.weight[octet][e];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) weight += __shfl_xor_sync(kWholeWarp, weight, distance);
        if (lane < 4) stats[warp][head] = make_float2(all.highest[octet][e], weight);
#pragma unroll
        for (int i = 0; i < kSize / 16; i++) {
          to[head * L::kHeadRow + i * 16] = all.sums[octet][i][e];
          to[head * L::kHeadRow + i * 16 + 8] = all.sums[octet][i][e + 2];
        }
      }
    }
  }

  // Channels `channel` to + 3 of a head, over all warps.
  __device__ __forceinline__ Combined combine(unsigned char* ring, int head, int channel) const {
    Combined combined;
#pragma unroll
    for (int warp = 0; warp < L::kWarps; warp++) {
      const float* sum = sums(ring, warp) + head * L::kHeadRow + channel;
      combined.add(*reinterpret_cast<const float4*>(sum), stats[warp][head]);
    }
    return combined;
  }

  // Return whether this block is the last of `splits` to finish its stores; the counter is then zero again. Called by
  // all threads.
  __device__ __forceinline__ bool arrives_last(unsigned* arrived, int splits) {
    __syncthreads();
    if (threadIdx.x == 0) is_last = count_up_to(splits - 1, arrived) == splits - 1;
    __syncthreads();
    return is_last;
  }
};

// Attend to one split of a sequence: each warp takes every kWarps-th tile through its own pipeline, without barriers.
template <class Cache, int kSize, int kOctets>
__device__ __forceinline__ void attend_split(Gathered<kSize, kOctets>& all, unsigned char* ring, const bf16* q,
                                             const typename Cache::Element* keys, const typename Cache::Element* values,
                                             const int* table, const typename Cache::Shape& shape,
                                             const VisibleRange& visible, const WorkTile& work) {
  using L = typename Cache::template SmemLayout<kSize>;
  constexpr int kStages = L::kStages;
  const int warp = threadIdx.x / 32, end = work.split_start(work.split + 1, visible);
  const uint32_t mine = shared_address(ring) + warp * L::kWarpBytes;
  int tile = work.split_start(work.split, visible) + warp;

  uint32_t queries[kOctets][kSize / 16][2];
  load_queries<kSize, kOctets, typename Cache::Operands>(queries, q, shape);
  // The block table is read two tiles ahead of the copies that need it. The first kStages steps only start copies.
  KvTile next(tile, table, shape), after(tile + L::kWarps, table, shape);
#pragma unroll 1
  for (int step = -kStages; tile < end; step++) {
    const uint32_t stage = mine + (step + kStages) % kStages * L::kStageBytes;
    if (step >= 0) {
      copies_wait<kStages - 1>();
      __syncwarp();
      const auto rows = Cache::template rows<kSize>(stage, mine, tile, shape, visible);
      attend<kSize, kOctets, typename Cache::Operands>(all, rows, tile, queries, shape.scale, visible);
      __syncwarp();
      tile += L::kWarps;
    }
    if (next.number < end) {
      if (shape.head_size == kSize && visible.has_all(next.number)) {
        Cache::template copy_tile<kSize, true>(stage, next, keys, values, shape, visible);
      } else {
        Cache::template copy_tile<kSize, false>(stage, next, keys, values, shape, visible);
      }
    }
    copies_commit();
    next = after;
    after = KvTile(next.number + L::kWarps, table, shape);
  }
  copies_wait<0>();
}

template <class Cache, int kSize, int kOctets>
__device__ __forceinline__ void decode_attention(const bf16* q, const typename Cache::Element* keys,
                                                 const typename Cache::Element* values, const Sequences& sequences,
                                                 const int* tables, bf16* out, float* partials, float2* stats,
                                                 unsigned* arrived, const float* sinks,
                                                 const typename Cache::Shape& shape) {
  using L = typename Cache::template SmemLayout<kSize>;
  extern __shared__ __align__(16) unsigned char ring[];
  __shared__ Shared<Cache, kSize, kOctets> shared;

  // 1. Find the split; it follows from a step's inputs, which no kernel writes.
  pdl_launch_dependents();
  const int kv_head = blockIdx.x, index = blockIdx.y, first_head = kv_head * shape.group;
  {
    const WorkTile work = find_work_tile(index, sequences, shape);
    pdl_wait();
    if (work.splits == 0) return;
    if (threadIdx.x == 0) shared.work = work;  // until step 3, since registers are scarce

    // 2. Attend to its tiles.
    const VisibleRange visible(work.sequence, sequences, shape);
    const int* table = tables + static_cast<int64_t>(work.sequence) * shape.table_width;
    const bf16* query = q + visible.row * shape.q_stride + first_head * shape.head_size;
    Gathered<kSize, kOctets> all;
    attend_split<Cache, kSize, kOctets>(all, ring, query, keys, values, table, shape, visible, work);
    shared.store(all, ring);
  }
  __syncthreads();

  // 3. Combine the warps: into the output, or a partial result.
  const WorkTile work = shared.work;
  const int quads = shape.head_size / 4, heads = shape.kv_heads * shape.group;
  out += (static_cast<int64_t>(sequences.query_starts[work.sequence]) * heads + first_head) * shape.head_size;
  auto split_row = [&](int split) { return ((work.first_slot + split) * shape.kv_heads + kv_head) * shape.group; };
  for (int i = threadIdx.x; i < shape.group * quads; i += L::kThreads) {
    const int head = i / quads, channel = i % quads * 4;
    Combined combined = shared.combine(ring, head, channel);
    if (work.splits == 1) {
      if (sinks != nullptr) combined.add_sink(sinks[first_head + head]);
      combined.template write<Cache>(out + head * shape.head_size + channel, shape);
      continue;
    }
    const int to = split_row(work.split) + head;
    *reinterpret_cast<float4*>(partials + to * shape.head_size + channel) = combined.sum;
    if (channel == 0) stats[to] = make_float2(combined.highest, combined.weight);
  }
  if (work.splits == 1) return;
  if (!shared.arrives_last(arrived + work.sequence * shape.kv_heads + kv_head, work.splits)) return;

  // 4. The last block to arrive combines the splits, in order.
  for (int i = threadIdx.x; i < shape.group * quads; i += L::kThreads) {
    const int head = i / quads, channel = i % quads * 4;
    Combined combined;
#pragma unroll 8
    for (int split = 0; split < work.splits; split++) {
      const int from = split_row(split) + head;
      combined.add(__ldcg(reinterpret_cast<const float4*>(partials + from * shape.head_size + channel)),
                   __ldcg(stats + from));
    }
    if (sinks != nullptr) combined.add_sink(sinks[first_head + head]);
    combined.template write<Cache>(out + head * shape.head_size + channel, shape);
  }
}

// The entries of a cache: of heads up to the number in the name, and of up to 8 query heads a KV head, or 16 (_wide).
#define DECODE_ATTENTION(name, Cache, size, octets)                                                                 \
  extern "C" __global__ void __launch_bounds__(Cache::SmemLayout<size>::kThreads, kBlocks)                          \
      name(const bf16* q, const Cache::Element* keys, const Cache::Element* values, const int* query_starts,        \
           const int* contexts, const int* tables, bf16* out, float* partials, float2* stats, unsigned* arrived,    \
           const float* sinks, Cache::Shape shape) {                                                                \
    const Sequences sequences{query_starts, contexts};                                                              \
    decode_attention<Cache, size, octets>(q, keys, values, sequences, tables, out, partials, stats, arrived, sinks, \
                                          shape);                                                                   \
  }
#define DECODE_ATTENTIONS(name, Cache)             \
  DECODE_ATTENTION(name##_64, Cache, 64, 1)        \
  DECODE_ATTENTION(name##_64_wide, Cache, 64, 2)   \
  DECODE_ATTENTION(name##_80, Cache, 80, 1)        \
  DECODE_ATTENTION(name##_80_wide, Cache, 80, 2)   \
  DECODE_ATTENTION(name##_96, Cache, 96, 1)        \
  DECODE_ATTENTION(name##_96_wide, Cache, 96, 2)   \
  DECODE_ATTENTION(name##_128, Cache, 128, 1)      \
  DECODE_ATTENTION(name##_128_wide, Cache, 128, 2) \
  DECODE_ATTENTION(name##_192, Cache, 192, 1)      \
  DECODE_ATTENTION(name##_192_wide, Cache, 192, 2) \
  DECODE_ATTENTION(name##_256, Cache, 256, 1)      \
  DECODE_ATTENTION(name##_256_wide, Cache, 256, 2)
