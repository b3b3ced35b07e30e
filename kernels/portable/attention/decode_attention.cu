// decode_attention.cu: o = softmax(scale * q K^T) V of sequences with one query token, K and V in a paged cache.
//
//   q : rows of Hq * Dh bf16, `q_stride` elements apart; query head h reads KV head h / G, G = Hq / Hkv
//   keys, values : [P, Hkv, Tb, Dh] bf16     query_starts : [B + 1] int32     contexts : [B] int32 tokens in the cache
//   tables : [B, W] int32, a sequence's KV blocks
//   out   : [N, Hq * Dh] bf16; rows of sequences without context, or with another number of queries than one, are
//   skipped partials : [M * G, Dh] float32     stats : [M * G] (maximum, sum)     M = 2 Hkv * `filling` splits at most
//   arrived : [B * Hkv] uint32, zero before and after; it, partials and stats serve sequences of several splits
//   math  : bf16 tensor-core operands, float32 sums; probabilities rounded to bf16; softmax in float32, base 2
//   grid  : (Hkv, filling + B), or less where contexts are short    block : (128, 1, 1); (64, 1, 1) above Dh 128
//   shared: warps * 2 * 2 * 16 * (size + 8) * 2 B, size = the entry's; and 1 KB static
//   needs : Dh % 8 == 0 up to the entry's size (64, 80, 96, 128, 192, 256); G <= 8, or 16 (entries ending in _wide);
//           Tb % 8 == 0; 16-byte aligned arrays (ops/cuda/attention/decode_attention.py checks)
//   check : tests/gpu/attention/test_decode_attention.py against ops/reference/attention.py, max |err| 2^-7 of the
//           largest value
//
// Bound by memory: 16 tokens of 128 channels are 8 KB and cost a warp about 300 instructions, where an SM's share of
// 4.5 TB/s gives it 1,700 issue slots.
#include "decode_copy.cuh"

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
  __device__ __forceinline__ void write(bf16* out) const {
    const float inverse = 1.f / weight;
    *reinterpret_cast<uint2*>(out) =
        make_uint2(pack_bf16(sum.x * inverse, sum.y * inverse), pack_bf16(sum.z * inverse, sum.w * inverse));
  }
};

// Count 0, 1 .. limit, 0 and return the count before. Stores that this block made before its last barrier are
// visible to the block that counts next (release, acquire); one fence cheaper than __threadfence() on both sides.
__device__ __forceinline__ unsigned count_up_to(unsigned limit, unsigned* counter) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(limit) : "memory");
  return before;
}

// Results of the warps of a block, in shared memory: each warp's sums overwrite its own pipeline stages.
template <int kSize, int kOctets>
struct Shared {
  using L = SmemLayout<kSize>;
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
template <int kSize, int kOctets>
__device__ __forceinline__ void attend_split(Gathered<kSize, kOctets>& all, unsigned char* ring, const bf16* q,
                                             const bf16* keys, const bf16* values, const int* table, const Shape& shape,
                                             const VisibleRange& visible, const WorkTile& work) {
  using L = SmemLayout<kSize>;
  const int warp = threadIdx.x / 32, end = work.split_start(work.split + 1, visible);
  const uint32_t mine = shared_address(ring) + warp * L::kWarpBytes;
  int tile = work.split_start(work.split, visible) + warp;

  uint32_t queries[kOctets][kSize / 16][2];
  load_queries<kSize, kOctets>(queries, q, shape);
  // The block table is read two tiles ahead of the copies that need it. The first kStages steps only start copies.
  KvTile next(tile, table, shape), after(tile + L::kWarps, table, shape);
#pragma unroll 1
  for (int step = -kStages; tile < end; step++) {
    const uint32_t stage = mine + (step + kStages) % kStages * L::kStageBytes;
    if (step >= 0) {
      copies_wait<kStages - 1>();
      __syncwarp();
      attend<kSize, kOctets>(all, PaddedRows<kSize>(stage), tile, queries, shape.scale, visible);
      __syncwarp();
      tile += L::kWarps;
    }
    if (next.number < end) {
      if (shape.head_size == kSize && visible.has_all(next.number)) {
        copy_tile<kSize, true>(stage, next, keys, values, shape, visible);
      } else {
        copy_tile<kSize, false>(stage, next, keys, values, shape, visible);
      }
    }
    copies_commit();
    next = after;
    after = KvTile(next.number + L::kWarps, table, shape);
  }
  copies_wait<0>();
}

template <int kSize, int kOctets>
__device__ __forceinline__ void decode_attention(const bf16* q, const bf16* keys, const bf16* values,
                                                 const Sequences& sequences, const int* tables, bf16* out,
                                                 float* partials, float2* stats, unsigned* arrived,
                                                 const Shape& shape) {
  using L = SmemLayout<kSize>;
  extern __shared__ __align__(16) unsigned char ring[];
  __shared__ Shared<kSize, kOctets> shared;

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
    attend_split<kSize, kOctets>(all, ring, query, keys, values, table, shape, visible, work);
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
    const Combined combined = shared.combine(ring, head, channel);
    if (work.splits == 1) {
      combined.write(out + head * shape.head_size + channel);
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
    combined.write(out + head * shape.head_size + channel);
  }
}

#define DECODE_ATTENTION(name, size, octets)                                                                  \
  extern "C" __global__ void __launch_bounds__(SmemLayout<size>::kThreads, kBlocks)                           \
      name(const bf16* q, const bf16* keys, const bf16* values, const int* query_starts, const int* contexts, \
           const int* tables, bf16* out, float* partials, float2* stats, unsigned* arrived, Shape shape) {    \
    const Sequences sequences{query_starts, contexts};                                                        \
    decode_attention<size, octets>(q, keys, values, sequences, tables, out, partials, stats, arrived, shape); \
  }

DECODE_ATTENTION(decode_attention_64, 64, 1)
DECODE_ATTENTION(decode_attention_64_wide, 64, 2)
DECODE_ATTENTION(decode_attention_80, 80, 1)
DECODE_ATTENTION(decode_attention_80_wide, 80, 2)
DECODE_ATTENTION(decode_attention_96, 96, 1)
DECODE_ATTENTION(decode_attention_96_wide, 96, 2)
DECODE_ATTENTION(decode_attention_128, 128, 1)
DECODE_ATTENTION(decode_attention_128_wide, 128, 2)
DECODE_ATTENTION(decode_attention_192, 192, 1)
DECODE_ATTENTION(decode_attention_192_wide, 192, 2)
DECODE_ATTENTION(decode_attention_256, 256, 1)
DECODE_ATTENTION(decode_attention_256_wide, 256, 2)
